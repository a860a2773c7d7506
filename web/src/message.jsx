// One message, with what can be done to it.
import { useState } from 'preact/hooks'
import { Code, CopyButton } from './code.jsx'
import { Markdown } from './markdown.jsx'
import { chats } from './chats.js'
import * as tree from './tree.js'
import { seconds, speed } from './format.js'

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}

// asJSON is the text indented, if all of it is one object or list.
function asJSON(text) {
  const t = text.trim()
  if (!/^[[{][^]*[\]}]$/.test(t)) return null
  try {
    return JSON.stringify(JSON.parse(t), null, 2)
  } catch {
    return null
  }
}

function Versions({ conv, node, busy }) {
  const all = tree.siblings(conv, node)
  if (all.length < 2) return null
  const at = all.indexOf(node)
  const go = (by) => chats.show(conv, all[at + by])
  return (
    <span class="versions">
      <button type="button" class="quiet" disabled={busy || at === 0} onClick={() => go(-1)} aria-label="Version before">‹</button>
      <span aria-label={`version ${at + 1} of ${all.length}`}>{at + 1}/{all.length}</span>
      <button type="button" class="quiet" disabled={busy || at === all.length - 1} onClick={() => go(1)} aria-label="Version after">›</button>
    </span>
  )
}

function Editor({ text, onDone, onCancel, label }) {
  const [value, setValue] = useState(text)
  const keys = (e) => {
    if (e.key === 'Escape') { e.stopPropagation(); onCancel() }
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (value.trim()) onDone(value) }
  }
  return (
    <form class="editor" onSubmit={(e) => { e.preventDefault(); if (value.trim()) onDone(value) }}>
      <textarea ref={(el) => el && document.activeElement !== el && !el.dataset.met && (el.dataset.met = '1', el.focus())} rows={Math.min(12, value.split('\n').length + 1)}
        value={value} onInput={(e) => setValue(e.target.value)} onKeyDown={keys} aria-label={label} />
      <div class="row"><button type="submit" class="main">Send</button><button type="button" onClick={onCancel}>Cancel</button></div>
    </form>
  )
}

function User({ conv, node, busy }) {
  const [editing, setEditing] = useState(false)
  if (editing) return <article class="message user"><Editor text={node.content} label="Edit the message" onCancel={() => setEditing(false)} onDone={(t) => { setEditing(false); chats.edit(conv, node, t) }} /></article>
  return (
    <article class="message user" aria-label="You">
      <div class="bubble">{node.content}</div>
      <div class="acts">
        <Versions conv={conv} node={node} busy={busy} />
        <button type="button" class="quiet" disabled={busy} onClick={() => setEditing(true)}>Edit</button>
        <CopyButton text={node.content} />
      </div>
    </article>
  )
}

function Reasoning({ node }) {
  const open = node.state === 'writing' && !node.thought
  const time = node.thinking && (node.thought ?? node.ended) ? ' for ' + seconds((node.thought ?? node.ended) - node.thinking) : ''
  return (
    <details class="reasoning">
      <summary>{open ? <span class="pulse">Thinking …</span> : 'Thought' + time}</summary>
      <Markdown text={node.reasoning} />
    </details>
  )
}

function Calls({ conv, node, last, busy }) {
  const [texts, setTexts] = useState(node.tool_calls.map(() => ''))
  const ask = last && !busy && node.state === 'done'
  return (
    <form class="calls" onSubmit={(e) => { e.preventDefault(); chats.results(conv, node, node.tool_calls.map((_, i) => texts[i] ?? '')) }}>
      {node.tool_calls.map((t, i) => (
        <div class="call" key={i}>
          <div class="call-name">calls <b>{t.name}</b></div>
          <Code lang="json" text={node.state === 'writing' ? t.arguments : pretty(t.arguments || '{}')} />
          {ask && <label class="field">Result of {t.name}<textarea rows={2} class="mono" value={texts[i] ?? ''} onInput={(e) => setTexts(Object.assign([...texts], { [i]: e.target.value }))} /></label>}
        </div>
      ))}
      {ask && <button type="submit" class="main">Send the result{node.tool_calls.length > 1 ? 's' : ''}</button>}
    </form>
  )
}

function Progress({ node }) {
  const p = node.progress
  if (node.first || node.state !== 'writing') return null
  if (!p || !p.total) return <p class="waiting"><span class="pulse">Waiting …</span></p>
  return <p class="waiting">Reading the prompt <progress max={p.total} value={p.processed} aria-label="prompt read" /> {p.processed} of {p.total} tokens</p>
}

function Figures({ node }) {
  const t = node.timings
  const parts = []
  if (node.state === 'stopped') parts.push('stopped')
  if (node.finish === 'length') parts.push('cut at the limit of tokens')
  if (t?.predicted_n > 1) parts.push(`${t.predicted_n} tokens, ${speed(t.predicted_per_second)} a second`)
  else if (node.first && node.pieces > 1) {
    const ms = (node.ended ?? Date.now()) - node.first
    if (ms > 0) parts.push(`${speed((node.pieces - 1) / ms * 1000)} a second`)
  }
  if (node.first) parts.push('first token after ' + seconds(node.first - node.created))
  if (t?.cache_n > 0) parts.push(`${t.cache_n} of ${t.cache_n + t.prompt_n} prompt tokens reused`)
  return <span class="figures">{parts.join(' · ')}</span>
}

function Assistant({ conv, node, last, busy }) {
  const writing = node.state === 'writing'
  const json = !writing && node.content ? asJSON(node.content) : null
  return (
    <article class="message assistant" aria-label="Answer" aria-busy={writing} data-state={node.state}>
      {node.reasoning && <Reasoning node={node} />}
      <Progress node={node} />
      {json ? <Code lang="json" text={json} /> : node.content && <Markdown text={node.content} />}
      {node.tool_calls?.length > 0 && <Calls conv={conv} node={node} last={last} busy={busy} />}
      {node.error && <p class="wrong" role="alert">{node.error}</p>}
      <div class="acts">
        <Versions conv={conv} node={node} busy={busy} />
        {!writing && <button type="button" class="quiet" disabled={busy} onClick={() => chats.regenerate(conv, node)}>Regenerate</button>}
        {!writing && node.content && <CopyButton text={node.content} />}
        <Figures node={node} />
      </div>
    </article>
  )
}

function ToolResult({ node }) {
  return (
    <article class="message tool" aria-label={`Result of ${node.name}`}>
      <div class="call-name">result of <b>{node.name}</b></div>
      <Code lang={asJSON(node.content) ? 'json' : 'text'} text={asJSON(node.content) ?? node.content} />
    </article>
  )
}

export function Message(p) {
  const Role = p.node.role === 'user' ? User : p.node.role === 'tool' ? ToolResult : Assistant
  return <Role {...p} />
}
