// Code: coloured where its language is known, with a button that copies it.
import { useState } from 'preact/hooks'
import { createLowlight } from 'lowlight'
import bash from 'highlight.js/lib/languages/bash'
import c from 'highlight.js/lib/languages/c'
import cpp from 'highlight.js/lib/languages/cpp'
import css from 'highlight.js/lib/languages/css'
import diff from 'highlight.js/lib/languages/diff'
import go from 'highlight.js/lib/languages/go'
import ini from 'highlight.js/lib/languages/ini'
import java from 'highlight.js/lib/languages/java'
import javascript from 'highlight.js/lib/languages/javascript'
import json from 'highlight.js/lib/languages/json'
import python from 'highlight.js/lib/languages/python'
import rust from 'highlight.js/lib/languages/rust'
import sql from 'highlight.js/lib/languages/sql'
import typescript from 'highlight.js/lib/languages/typescript'
import xml from 'highlight.js/lib/languages/xml'
import yaml from 'highlight.js/lib/languages/yaml'

const languages = createLowlight({ bash, c, cpp, css, diff, go, ini, java, javascript, json, python, rust, sql, typescript, xml, yaml })
languages.registerAlias({ bash: ['sh', 'shell', 'zsh', 'console'], go: ['golang'], xml: ['html', 'svg'], ini: ['toml'] })

const longest = 40000 // characters: more is shown without colours

function elements(nodes) {
  return nodes.map((n, i) => n.type === 'text' ? n.value : <span key={i} class={n.properties.className?.join(' ')}>{elements(n.children)}</span>)
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const area = document.createElement('textarea') // pages that are not from this machine have no clipboard
  area.value = text
  document.body.append(area)
  area.select()
  document.execCommand('copy')
  area.remove()
}

export function CopyButton({ text, label = 'Copy' }) {
  const [done, setDone] = useState(false)
  const act = async () => {
    await copy(text)
    setDone(true)
    setTimeout(() => setDone(false), 1500)
  }
  return <button type="button" class="quiet" onClick={act} aria-live="polite">{done ? 'Copied' : label}</button>
}

export function Code({ lang, text }) {
  const known = lang && text.length < longest && languages.registered(lang.toLowerCase())
  return (
    <figure class="code">
      <figcaption><span>{lang || 'text'}</span><CopyButton text={text} /></figcaption>
      <pre tabIndex={0}><code>{known ? elements(languages.highlight(lang.toLowerCase(), text).children) : text}</code></pre>
    </figure>
  )
}
