// The chat: conversations at the left, messages, the composer, parameters at the right.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { chats } from './chats.js'
import { Message } from './message.jsx'
import { Panel } from './panel.jsx'
import * as tree from './tree.js'
import { useStore } from './hooks.js'
import { bytes, percent } from './format.js'

function Conversations({ open, onClose }) {
  const [naming, setNaming] = useState(null)
  const pick = (c) => { chats.choose(c); onClose() }
  return (
    <aside class={'conversations' + (open ? ' open' : '')} aria-label="Conversations">
      <button type="button" class="main" onClick={() => { chats.create(); onClose(); document.getElementById('composer')?.focus() }} title="Ctrl+Shift+O">New conversation</button>
      <ul>
        {chats.list.map((c) => (
          <li key={c.id} class={c === chats.open ? 'current' : undefined}>
            {naming === c.id
              ? <input class="rename" value={tree.titleOf(c)} aria-label="Name of the conversation" ref={(el) => el && document.activeElement !== el && (el.focus(), el.select())}
                  onKeyDown={(e) => { if (e.key === 'Enter') e.target.blur(); if (e.key === 'Escape') { e.target.value = tree.titleOf(c); e.target.blur() } }}
                  onBlur={(e) => { setNaming(null); if (e.target.value.trim() !== tree.titleOf(c)) chats.rename(c, e.target.value.trim()) }} />
              : <button type="button" class="title" aria-current={c === chats.open ? 'true' : undefined} onClick={() => pick(c)}>{tree.titleOf(c)}{chats.running.has(c.id) && <span class="pulse" aria-label="writing"> ●</span>}</button>}
            <button type="button" class="quiet" onClick={() => setNaming(c.id)} aria-label={`Rename ${tree.titleOf(c)}`} title="Rename">✎</button>
            <button type="button" class="quiet" onClick={() => confirm(`Delete “${tree.titleOf(c)}”?`) && chats.remove(c)} aria-label={`Delete ${tree.titleOf(c)}`} title="Delete">✕</button>
          </li>
        ))}
      </ul>
      <p class="hint">They are kept in this browser only.</p>
    </aside>
  )
}

// Status is the line under the composer: context, where the experts came from, what limits.
function Status({ conv }) {
  const window = chats.props?.default_generation_settings?.n_ctx
  const used = tree.path(conv).findLast((n) => n.usage)?.usage.total_tokens ?? 0
  const t = chats.last
  const rate = t?.recent?.disk_bytes_per_second
  return (
    <p class="status">
      {window && <span>context {used} of {window} <meter min={0} max={window} value={used} aria-label={`context used: ${used} of ${window} tokens`} /></span>}
      {t?.hits.touches > 0 && <span title="experts found in RAM, lately">hits {percent(t.recent.hits.hit_rate)}</span>}
      {rate > 0 && <span title="while the disk was reading">disk {bytes(rate)}/s</span>}
      {t && t.limit.code !== 'idle' && <a href="#/monitor" title={t.limit.words}>limit: {t.limit.code}</a>}
    </p>
  )
}

function Composer({ conv, busy, onPanel, panel }) {
  const [text, setText] = useState('')
  const area = useRef(null)
  useLayoutEffect(() => {
    const el = area.current
    el.style.height = 'auto'
    el.style.height = Math.min(el.scrollHeight + 2, innerHeight * 0.4) + 'px'
  }, [text])
  useEffect(() => { if (matchMedia('(pointer: fine)').matches) area.current.focus() }, [conv.id])
  const send = () => {
    if (busy || !text.trim()) return
    chats.send(conv, text)
    setText('')
  }
  return (
    <form class="composer" onSubmit={(e) => { e.preventDefault(); busy ? chats.stop(conv) : send() }}>
      <textarea id="composer" ref={area} rows={1} value={text} onInput={(e) => setText(e.target.value)} placeholder="Ask something" aria-label="Message"
        onKeyDown={(e) => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); send() } }} />
      <div class="row">
        <button type="button" class="quiet" onClick={onPanel} aria-expanded={panel}>Parameters</button>
        <span class="hint keys">Enter sends, Shift+Enter breaks the line, Esc stops</span>
        {busy
          ? <button type="submit" class="main stop">Stop</button>
          : <button type="submit" class="main" disabled={!text.trim()}>Send</button>}
      </div>
    </form>
  )
}

export function Chat() {
  useStore(chats)
  const [panel, setPanel] = useState(false)
  const [side, setSide] = useState(false)
  const scroller = useRef(null)
  const stick = useRef(true)
  const [away, setAway] = useState(false)
  const conv = chats.open
  useLayoutEffect(() => { stick.current = true }, [conv?.id])
  useLayoutEffect(() => {
    if (stick.current && scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight
  })
  useEffect(() => {
    const keys = (e) => {
      if (e.key === 'Escape' && chats.open) { chats.stop(); setSide(false) }
      if (e.key.toLowerCase() === 'o' && e.ctrlKey && e.shiftKey) { e.preventDefault(); chats.create(); document.getElementById('composer')?.focus() }
    }
    addEventListener('keydown', keys)
    return () => removeEventListener('keydown', keys)
  }, [])
  if (!conv) return <main class="centre" />
  const busy = chats.running.has(conv.id)
  const shown = tree.path(conv)
  const scrolled = () => {
    const el = scroller.current
    stick.current = el.scrollHeight - el.scrollTop - el.clientHeight < 40
    setAway(!stick.current)
  }
  return (
    <main class="chat" id="main" tabIndex={-1}>
      <Conversations open={side} onClose={() => setSide(false)} />
      {side && <div class="shade" onClick={() => setSide(false)} />}
      <section class="talk" aria-label={tree.titleOf(conv)}>
        <div class="talk-head"><button type="button" class="quiet" onClick={() => setSide(!side)} aria-expanded={side}>☰ Conversations</button><span>{tree.titleOf(conv)}</span></div>
        <div class="messages" ref={scroller} onScroll={scrolled} role="log" aria-label="Messages" tabIndex={0}>
          {shown.length === 0 && <div class="welcome"><h1>{chats.props?.model_alias ?? 'Terrace'}</h1><p>runs on this machine. Nothing of what you write leaves it.</p></div>}
          {shown.map((n, i) => <Message key={n.id} conv={conv} node={n} last={i === shown.length - 1} busy={busy} />)}
        </div>
        {away && <button type="button" class="down" onClick={() => { stick.current = true; setAway(false); scroller.current.scrollTop = scroller.current.scrollHeight }} aria-label="To the latest message">↓</button>}
        <Composer conv={conv} busy={busy} panel={panel} onPanel={() => setPanel(!panel)} />
        <Status conv={conv} />
        <p class="unseen" role="status">{chats.note}</p>
      </section>
      {panel && <Panel conv={conv} props={chats.props} onChange={(p) => chats.setParams(conv, p)} onClose={() => setPanel(false)} />}
    </main>
  )
}
