// The page: three views behind the parts of the address after #, a key where the server wants one.
import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { get, hasKey, onKeyWanted, setKey } from './api.js'
import { chats } from './chats.js'
import { Chat } from './chat.jsx'
import { Monitor } from './monitor.jsx'
import { Planner } from './planner.jsx'
import { setTheme, theme } from './theme.js'

const views = { chat: ['Chat', Chat], monitor: ['Monitor', Monitor], planner: ['Planner', Planner] }

function useView() {
  const read = () => location.hash.replace(/^#\//, '')
  const [view, setView] = useState(read)
  useEffect(() => {
    const f = () => setView(read())
    addEventListener('hashchange', f)
    return () => removeEventListener('hashchange', f)
  }, [])
  return views[view] ? view : 'chat'
}

function KeyDialog({ onDone }) {
  const dialog = useRef(null)
  const [wrong, setWrong] = useState('')
  useEffect(() => { dialog.current.showModal() }, [])
  const submit = async (e) => {
    e.preventDefault()
    setKey(new FormData(e.target).get('key').trim())
    try {
      await get('v1/models')
      onDone()
    } catch (e) {
      setWrong(e.status === 401 ? 'The server does not know this key.' : e.message)
    }
  }
  return (
    <dialog ref={dialog} onCancel={(e) => e.preventDefault()} aria-labelledby="key-title">
      <form onSubmit={submit}>
        <h2 id="key-title">This server wants a key</h2>
        <label class="field">Key<input name="key" type="password" autocomplete="off" required autofocus /></label>
        {wrong && <p class="wrong" role="alert">{wrong}</p>}
        <p class="hint">One of those given by --api-key. It is kept until this tab is closed.</p>
        <button type="submit" class="main">Go on</button>
      </form>
    </dialog>
  )
}

const next = { auto: 'light', light: 'dark', dark: 'auto' }

function Head({ view, model }) {
  const [t, setT] = useState(theme)
  const turn = () => { setTheme(next[t]); setT(next[t]) }
  return (
    <header class="head">
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main')?.focus() }}>To the content</a>
      <span class="brand"><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M1 14V10h5V6h5V2h4v12z" fill="currentColor" /></svg>Terrace</span>
      <nav aria-label="Views">{Object.entries(views).map(([k, [name]]) => <a key={k} href={'#/' + k} aria-current={k === view ? 'page' : undefined}>{name}</a>)}</nav>
      <span class="model" title={model}>{model}</span>
      <button type="button" class="quiet" onClick={turn} aria-label={`Colours: ${t}`} title={`Colours: ${t}`}>{{ auto: '◐', light: '☀', dark: '☾' }[t]}</button>
    </header>
  )
}

function Page() {
  const view = useView()
  const [phase, setPhase] = useState('asking') // asking, loading, key, ready, lost
  const [model, setModel] = useState('')
  const enter = async () => {
    try {
      await chats.load()
      setModel(chats.props.model_alias)
      setPhase('ready')
    } catch (e) {
      setPhase(e.status === 401 ? 'key' : 'lost')
    }
  }
  useEffect(() => {
    let timer = 0, gone = false
    const ask = async () => {
      let ui
      try { ui = await get('ui.json') } catch { ui = null }
      if (gone) return
      if (!ui || !ui.ready) {
        setPhase(ui ? 'loading' : 'lost')
        timer = setTimeout(ask, 1000)
      } else if (ui.key && !hasKey()) setPhase('key')
      else await enter()
    }
    if (phase !== 'ready' && phase !== 'key') ask()
    return () => { gone = true; clearTimeout(timer) }
  }, [phase === 'lost'])
  useEffect(() => onKeyWanted(() => setPhase('key')), [])
  useEffect(() => { document.title = views[view][0] + ' – Terrace' }, [view])
  const View = views[view][1]
  return (
    <>
      <Head view={view} model={model} />
      {phase === 'ready' && <View />}
      {phase === 'key' && <KeyDialog onDone={enter} />}
      {phase === 'loading' && <main class="centre" role="status"><span class="pulse">Loading the model …</span></main>}
      {phase === 'lost' && <main class="centre wrong" role="alert">The server cannot be reached.</main>}
    </>
  )
}

render(<Page />, document.getElementById('page'))
