// Markdown to elements. marked cuts the text into tokens, and elements are made of them one by one: no HTML is ever made
// from what a model wrote, so there is nothing to sanitise, and the page's policy (Trusted Types) forbids it besides.
import { memo } from './memo.js'
import { lexer } from 'marked'
import { Code } from './code.jsx'

const entities = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', hellip: '…', mdash: '—', ndash: '–', copy: '©', times: '×', deg: '°', rarr: '→', larr: '←' }

function plain(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/gi, (all, dec, hex, name) => {
    if (name) return entities[name] ?? all
    const code = dec ? +dec : parseInt(hex, 16)
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all
  })
}

// safe is the address of a link that may be followed; null for scripts and the like.
function safe(href) {
  try {
    const u = new URL(href, location.href)
    return ['http:', 'https:', 'mailto:'].includes(u.protocol) ? u.href : null
  } catch {
    return null
  }
}

function Link({ href, title, children }) {
  const to = safe(href)
  if (!to) return <span>{children}</span>
  return <a href={to} title={title || undefined} target="_blank" rel="noopener noreferrer">{children}</a>
}

function inline(tokens) {
  return (tokens ?? []).map((t, i) => {
    switch (t.type) {
      case 'strong': return <strong key={i}>{inline(t.tokens)}</strong>
      case 'em': return <em key={i}>{inline(t.tokens)}</em>
      case 'del': return <del key={i}>{inline(t.tokens)}</del>
      case 'codespan': return <code key={i}>{plain(t.text)}</code>
      case 'br': return <br key={i} />
      case 'link': return <Link key={i} href={t.href} title={t.title}>{inline(t.tokens)}</Link>
      case 'image': return <Link key={i} href={t.href} title={t.title}>[image: {plain(t.text) || t.href}]</Link>
      case 'checkbox': return <input key={i} type="checkbox" checked={t.checked} disabled aria-label={t.checked ? 'done' : 'to do'} />
      case 'html': return t.raw
      case 'text': return t.tokens ? inline(t.tokens) : plain(t.text)
      case 'escape': return t.text
      default: return t.raw
    }
  })
}

function block(t, i) {
  switch (t.type) {
    case 'space': case 'def': return null
    case 'hr': return <hr key={i} />
    case 'heading': {
      const H = 'h' + Math.min(t.depth + 2, 6) // below the page's own headings
      return <H key={i}>{inline(t.tokens)}</H>
    }
    case 'code': return <Code key={i} lang={t.lang?.split(/\s/)[0]} text={t.text} />
    case 'blockquote': return <blockquote key={i}>{t.tokens.map(block)}</blockquote>
    case 'list': {
      const L = t.ordered ? 'ol' : 'ul'
      return <L key={i} start={t.ordered && t.start !== 1 ? t.start : undefined}>{t.items.map((item, k) => <li key={k} class={item.task ? 'task' : undefined}>{item.tokens.map(block)}</li>)}</L>
    }
    case 'table': return (
      <div key={i} class="scroll-x" tabIndex={0} role="region" aria-label="table">
        <table>
          <thead><tr>{t.header.map((c, k) => <th key={k} scope="col" class={c.align ? 'align-' + c.align : undefined}>{inline(c.tokens)}</th>)}</tr></thead>
          <tbody>{t.rows.map((r, n) => <tr key={n}>{r.map((c, k) => <td key={k} class={c.align ? 'align-' + c.align : undefined}>{inline(c.tokens)}</td>)}</tr>)}</tbody>
        </table>
      </div>
    )
    case 'paragraph': return <p key={i}>{inline(t.tokens)}</p>
    case 'text': return <span key={i}>{t.tokens ? inline(t.tokens) : plain(t.text)}</span>
    case 'html': return <p key={i}>{t.raw}</p>
    default: return inline([t])
  }
}

// A block whose source is as it was is not made anew while the answer grows below it.
const Block = memo(({ token }) => block(token, 0), (a, b) => a.token.raw === b.token.raw && a.token.type === b.token.type)

export function Markdown({ text }) {
  return <div class="markdown">{lexer(text).map((t, i) => <Block key={i} token={t} />)}</div>
}
