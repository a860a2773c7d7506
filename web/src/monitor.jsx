// The monitor: where the experts are, what the machine does, what holds it back.
import { useEffect, useRef, useState } from 'preact/hooks'
import { get } from './api.js'
import { decode, Feed, places } from './feed.js'
import { ExpertMap } from './map.js'
import { useEvery } from './hooks.js'
import { useDark } from './theme.js'
import { bytes, count, percent, speed } from './format.js'

const feed = new Feed()

// Bar is parts of a whole, each with its share in words.
export function Bar({ parts, label }) {
  const seen = parts.filter((p) => p.value > 0)
  const whole = seen.reduce((n, p) => n + p.value, 0)
  return (
    <div class="bar-box">
      <div class="bar" role="img" aria-label={label + ': ' + (seen.map((p) => `${p.name} ${p.text}`).join(', ') || 'nothing')}>
        {seen.map((p) => <span key={p.name} class={'part ' + p.kind} style={{ flexGrow: String(p.value / whole) }} title={`${p.name}: ${p.text}`} />)}
      </div>
      <ul class="legend">{parts.filter((p) => p.value > 0 || p.always).map((p) => <li key={p.name}><i class={p.kind} />{p.name} <b>{p.text}</b></li>)}</ul>
    </div>
  )
}

function Tile({ name, value, note, title }) {
  return <div class="tile" title={title}><dt>{name}</dt><dd>{value}</dd>{note && <dd class="note">{note}</dd>}</div>
}

function MapView({ dark }) {
  const box = useRef(null), canvas = useRef(null), over = useRef(null), map = useRef(null)
  const [about, setAbout] = useState('')
  useEffect(() => {
    const m = map.current = new ExpertMap(canvas.current, over.current, feed)
    const tell = feed.subscribe((kind, routed) => m.changed(kind, routed))
    const see = new ResizeObserver(([e]) => m.resize(Math.floor(e.contentRect.width)))
    see.observe(box.current)
    return () => { tell(); see.disconnect() }
  }, [])
  useEffect(() => map.current.setTheme(dark), [dark])
  const say = () => {
    const i = map.current.cursor, b = map.current.box(i)
    setAbout(b ? `Layer ${b.layer}, expert ${b.expert}: ${places[feed.tier[i] & 15]}${feed.tier[i] & 16 ? ', pinned' : ''}${feed.tier[i] & 32 ? ', guessed for the next turn' : ''}; used by ${percent((feed.heat[i] / 255) ** 2, 1)} of the layer’s latest visits` : '')
  }
  const point = (e) => {
    const r = over.current.getBoundingClientRect()
    map.current.setCursor(map.current.find(e.clientX - r.left, e.clientY - r.top))
    say()
  }
  const key = (e) => {
    if (!/^(Arrow|Home|End)/.test(e.key)) return
    e.preventDefault()
    map.current.step(e.key)
    say()
  }
  const total = feed.tier.length
  return (
    <>
      <div class="map" ref={box}>
        <canvas ref={canvas} />
        <canvas ref={over} class="over" tabIndex={0} role="application" aria-roledescription="map of experts" onPointerMove={point} onPointerDown={point} onPointerLeave={() => { map.current.setCursor(-1); say() }} onKeyDown={key}
          aria-label={`Map of ${total} experts, ${feed.at[3]} in RAM. Arrow keys go from expert to expert.`} />
      </div>
      <p class="about" role="status">{about || 'Point at a cell, tap it, or go there with the arrow keys.'}</p>
      <ul class="legend map-legend">
        <li><i class="disk" />on disk</li><li><i class="reading" />being read</li><li><i class="ram" />in RAM</li><li><i class="vram" />in VRAM</li>
        <li><i class="heat" />{dark ? 'brighter' : 'darker'}: used more of late</li><li><i class="flash" />flash: chosen now</li>
      </ul>
    </>
  )
}

// Live are the figures of the stream itself. They change ten times a second at most.
function Live({ t, rate }) {
  const [, again] = useState(0)
  const when = useRef(0)
  useEffect(() => feed.subscribe(() => {
    const now = performance.now()
    if (now - when.current > 200) {
      when.current = now
      again(now)
    }
  }), [])
  useEvery(500, () => again(performance.now()), [])
  const r = t?.recent, b = t?.budget
  const busy = t && t.limit.code !== 'idle'
  return (
    <dl class="tiles" id="live" data-ram={feed.at[3]} data-tokens={feed.tokens} data-state={feed.state}>
      <Tile name="Tokens a second" value={speed(feed.rate())} note={r?.busy_ms > 0 ? `${speed(r.tokens / r.busy_ms * 1000)} while it works` : null} title="prompts and answers, of the last three seconds; below, of about ten seconds of work" />
      <Tile name="Waiting for the disk" value={busy ? percent(t.limit.waiting) : '–'} note="of the busy time" />
      <Tile name="Found in RAM" value={r?.hits.touches > 0 ? percent(r.hits.hit_rate, 1) : '–'} note={t?.hits.touches > 0 ? `${percent(t.hits.hit_rate, 1)} since the start` : null} />
      <Tile name="Disk" value={bytes(Math.round(rate)) + '/s'} note={t ? `${bytes(t.disk.bytes_read.demand + t.disk.bytes_read.guess + t.disk.bytes_read.preload)} read in all` : null} title={t?.disk.store} />
      <Tile name="Experts in RAM" value={count(feed.at[3])} note={`of ${count(feed.tier.length)}`} />
      <Tile name="RAM" value={b ? bytes(b.ram_now) : '–'} note={b ? (b.limited_by ? 'less than promised: ' + b.limited_by : `of ${bytes(b.ram_start)} at the start`) : null} />
      <Tile name="VRAM" value={b?.vram == null ? 'none' : bytes(b.vram)} note={b?.vram == null ? 'no experts there' : null} />
    </dl>
  )
}

const parts = { arena: 'experts', dense: 'dense weights', kv: 'context', work: 'work space', prompt_cache: 'kept prompts', predictor: 'predictor', table: 'table', runtime: 'run time' }

export function Monitor() {
  const dark = useDark()
  const [t, setT] = useState(null)
  const [status, setStatus] = useState({ state: 'off', error: '' })
  const [rate, setRate] = useState(0)
  const before = useRef(null)
  const round = useRef(0)
  useEffect(() => {
    const tell = feed.subscribe((kind) => kind === 'status' && setStatus({ state: feed.state, error: feed.error }))
    const seen = () => document.hidden ? feed.stop() : feed.start()
    seen()
    document.addEventListener('visibilitychange', seen)
    return () => { document.removeEventListener('visibilitychange', seen); feed.stop(); tell() }
  }, [])
  useEvery(1000, async (signal) => {
    try {
      const v = await get(round.current++ % 2 ? 'v1/tiers' : 'v1/tiers?detail=experts', signal)
      if (v.experts) feed.setHeat(decode(v.experts.heat))
      const now = performance.now(), read = v.disk.bytes_read.demand + v.disk.bytes_read.guess + v.disk.bytes_read.preload
      if (before.current) setRate((read - before.current.read) / (now - before.current.now) * 1000)
      before.current = { now, read }
      setT(v)
    } catch { /* the stream says what is wrong */ }
  }, [])
  if (status.state === 'none') return <main class="page" id="main" tabIndex={-1}><h1>Monitor</h1><p>There is nothing to see: {status.error}.</p></main>
  const g = t?.prefetch.experts
  const settled = g ? g.used + g.late + g.wasted : 0
  const share = (n) => settled ? `${count(n)} (${percent(n / settled)})` : count(n)
  return (
    <main class="page" id="main" tabIndex={-1}>
      <h1>Monitor {status.state === 'failed' && <span class="wrong" role="alert">no connection: {status.error}</span>}</h1>
      {t && <p class="limit" data-code={t.limit.code}><b>{t.limit.code === 'idle' ? 'Idle:' : 'Held back by'}</b> {t.limit.words}</p>}
      <Live t={t} rate={rate} />
      <section class="card"><h2>Experts, layer by layer</h2><MapView dark={dark} /></section>
      {t && (
        <div class="cards">
          <section class="card"><h2>Tiers</h2>
            <Bar label="experts by tier" parts={[
              { name: 'VRAM', kind: 'vram', value: t.tiers.vram?.experts ?? 0, text: count(t.tiers.vram?.experts ?? 0) },
              { name: 'RAM', kind: 'ram', value: t.tiers.ram.experts, text: `${count(t.tiers.ram.experts)} (${bytes(t.tiers.ram.slot_bytes)})` },
              { name: 'disk only', kind: 'disk', value: t.tiers.disk.experts - t.tiers.ram.experts - (t.tiers.vram?.experts ?? 0), text: `${count(t.tiers.disk.experts - t.tiers.ram.experts - (t.tiers.vram?.experts ?? 0))} of ${count(t.tiers.disk.experts)} (${bytes(t.tiers.disk.bytes)} in all)` },
            ]} />
            <p><b>One more GiB:</b> {t.one_more_gb.words}</p>
          </section>
          <section class="card"><h2>Prefetch</h2>
            {g.issued === 0 ? <p>Nothing was read on a guess yet.</p> : (
              <Bar label="experts read on a guess" parts={[
                { name: 'used', kind: 'ram', value: g.used, text: share(g.used), always: true },
                { name: 'late', kind: 'reading', value: g.late, text: share(g.late), always: true },
                { name: 'wasted', kind: 'wasted', value: g.wasted, text: share(g.wasted), always: true },
              ]} />
            )}
            <p class="hint">{t.prefetch.predictor ? `${t.prefetch.predictor} guesses, ${t.prefetch.lookahead} layer${t.prefetch.lookahead === 1 ? '' : 's'} ahead at most; ${count(g.issued)} asked for, ${count(g.cancelled)} taken back` : 'Nobody guesses.'}</p>
          </section>
          <section class="card"><h2>Memory</h2>
            <Bar label="RAM by use" parts={Object.entries(parts).map(([k, name], i) => ({ name, kind: 'p' + i, value: t.budget.parts[k], text: bytes(t.budget.parts[k]) }))} />
            <p class="hint">Promised {bytes(t.budget.ram)}; more than {bytes(t.budget.ram_full)} would be of no use.</p>
          </section>
          <section class="card"><h2>A token, at the least</h2>
            <Bar label="least time of a token on each part of the machine" parts={[
              { name: 'disk', kind: 'reading', value: t.limit.terms.disk_ms, text: ms(t.limit.terms.disk_ms), always: true },
              { name: 'memory', kind: 'ram', value: t.limit.terms.memory_ms, text: ms(t.limit.terms.memory_ms), always: true },
              { name: 'arithmetic', kind: 'vram', value: t.limit.terms.compute_ms, text: ms(t.limit.terms.compute_ms), always: true },
            ]} />
            <p class="hint">{t.batching.processing} of {t.batching.slots} slots busy, {t.batching.deferred} waiting.</p>
          </section>
        </div>
      )}
      {t && <Layers layers={t.layers} />}
    </main>
  )
}

const ms = (v) => v > 0 ? `${v < 10 ? v.toFixed(2) : v.toFixed(0)} ms` : '–'

function Layers({ layers }) {
  const [open, setOpen] = useState(false)
  return (
    <details class="card" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>The same as a table, by layer</summary>
      {open && (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="layers">
          <table>
            <thead><tr><th scope="col">Layer</th><th scope="col">Experts</th><th scope="col">in RAM</th><th scope="col">being read</th><th scope="col">RAM</th><th scope="col">asked for</th><th scope="col">found</th><th scope="col">missed</th></tr></thead>
            <tbody>{layers.filter((l) => l.experts > 0).map((l) => <tr key={l.layer}><th scope="row">{l.layer}</th><td>{l.experts}</td><td>{l.ram}</td><td>{l.loading}</td><td>{bytes(l.ram_bytes)}</td><td>{count(l.touches)}</td><td>{l.touches ? percent(l.hit_rate, 1) : '–'}</td><td>{count(l.misses)}</td></tr>)}</tbody>
          </table>
        </div>
      )}
    </details>
  )
}
