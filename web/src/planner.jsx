// The planner: what this machine and others would do with the model, and the RAM budget, live.
import { useEffect, useRef, useState } from 'preact/hooks'
import { get, post } from './api.js'
import { useEvery } from './hooks.js'
import { bytes, gib, percent, speed } from './format.js'

const step = 1 << 20
const settle = 200 // ms without a movement before the server is asked

function Row({ r, name, here }) {
  return (
    <tr class={here ? 'current' : r.fits ? undefined : 'misfit'}>
      <th scope="row">{name}</th>
      <td>{bytes(r.budget)}</td>
      {r.fits
        ? <>
            <td>{r.experts_total ? percent(r.resident_fraction) : '–'}</td>
            <td>{percent(r.hit_rate)}</td>
            <td>{bytes(r.bytes_read_per_token)}</td>
            <td><b>{speed(r.predicted_decode)}</b> ±{percent(r.uncertainty)}</td>
            <td>{speed(r.predicted_prefill)}</td>
            <td>{r.next_gb_gain > 0 ? '+' + speed(r.next_gb_gain) : '–'}</td>
            <td>{r.bottleneck}</td>
          </>
        : <td colSpan={7} title={r.reason}>does not fit: needs {bytes(r.least_budget)}</td>}
    </tr>
  )
}

function Budget({ tiers, onChange }) {
  const b = tiers.budget
  const least = Math.ceil(b.ram_least / step) * step
  const [value, setValue] = useState(b.ram)
  const [row, setRow] = useState(null)
  const [wrong, setWrong] = useState('')
  const [said, setSaid] = useState('')
  const timer = useRef(0), held = useRef(false), asked = useRef(0)
  useEffect(() => { if (!held.current) setValue(b.ram) }, [b.ram])
  const foretell = async (v) => {
    const mine = ++asked.current // an answer that was overtaken is not shown
    try {
      const { rows } = await get('v1/plan?budget=' + v)
      if (mine === asked.current) setRow(rows[0])
    } catch (e) { setRow(null); setWrong(e.message) }
  }
  useEffect(() => { foretell(b.ram) }, [])
  const move = (v) => {
    v = Math.max(b.ram_least, Math.min(b.ram_start, v))
    held.current = true
    setValue(v)
    clearTimeout(timer.current)
    timer.current = setTimeout(async () => {
      setWrong('')
      foretell(v)
      try {
        const r = await post('v1/tiers/budget', { ram: v })
        setSaid(`The budget is ${bytes(r.ram)}${r.over_bytes > 0 ? `; ${bytes(r.over_bytes)} are still on loan` : ''}.`)
        onChange(r)
      } catch (e) {
        setWrong(e.message)
        setValue(b.ram)
      }
      held.current = false
    }, settle)
  }
  const fixed = b.ram_start - b.ram_least < step
  const recent = tiers.recent
  return (
    <section class="card">
      <h2>RAM budget, live</h2>
      {fixed ? <p>The budget is at its smallest: there is nothing to move.</p> : (
        <>
          <div class="slider">
            <span><label for="budget">Budget</label><output for="budget">{bytes(value)}</output></span>
            <input id="budget" type="range" min={least} max={b.ram_start} step={step} value={value} onInput={(e) => move(+e.target.value >= b.ram_start - step ? b.ram_start : +e.target.value)} aria-valuetext={bytes(value)} />
            <span class="ends"><span>{bytes(b.ram_least)}, the least</span><span>{bytes(b.ram_start)}, as started</span></span>
          </div>
          <div class="row"><button type="button" onClick={() => move(b.ram_least)}>Least</button><button type="button" onClick={() => move(b.ram_start)}>As started</button></div>
        </>
      )}
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      <p role="status" class="hint">{said} {b.limited_by && `In force: ${bytes(b.ram_now)}: ${b.limited_by}.`}</p>
      <dl class="tiles">
        <div class="tile"><dt>Predicted</dt><dd>{row?.fits ? speed(row.predicted_decode) : '–'}</dd><dd class="note">tokens a second{row?.fits ? ` ±${percent(row.uncertainty)}` : ''}</dd></div>
        <div class="tile"><dt>Measured</dt><dd>{recent.busy_ms > 0 && tiers.limit.code !== 'idle' ? speed(recent.tokens / recent.busy_ms * 1000) : '–'}</dd><dd class="note">{tiers.limit.code === 'idle' ? 'nothing runs' : 'tokens a second of work'}</dd></div>
        <div class="tile"><dt>Experts in RAM</dt><dd id="slots">{tiers.tiers.ram.experts}</dd><dd class="note">{tiers.tiers.ram.slots} places, {tiers.tiers.disk.experts} experts</dd></div>
        <div class="tile"><dt>Found in RAM</dt><dd>{recent.hits.touches > 0 ? percent(recent.hits.hit_rate, 1) : '–'}</dd><dd class="note">{row?.fits ? `predicted ${percent(row.hit_rate)}` : 'of late'}</dd></div>
      </dl>
    </section>
  )
}

export function Planner() {
  const [plan, setPlan] = useState(null)
  const [tiers, setTiers] = useState(null)
  const [wrong, setWrong] = useState('')
  const [sizes, setSizes] = useState('8, 12, 16, 24, 32, 48, 64, 96, 128')
  const ask = async (text) => {
    const list = text.split(/[,\s]+/).filter(Boolean).map(Number)
    if (list.length === 0 || list.some((n) => !(n > 0 && n <= 4096))) return setWrong('Sizes are GiB, such as 16, 24, 32.')
    setWrong('')
    try {
      setPlan(await get('v1/plan?ram=' + list.map((n) => Math.round(n * 2 ** 30)).join(',')))
    } catch (e) { setWrong(e.message) }
  }
  useEffect(() => { ask(sizes) }, [])
  useEvery(1000, async (signal) => {
    try { setTiers(await get('v1/tiers', signal)) } catch { /* shown by the table */ }
  }, [])
  return (
    <main class="page" id="main" tabIndex={-1}>
      <h1>Planner</h1>
      {tiers && (tiers.layers.length > 0 ? <Budget tiers={tiers} onChange={(b) => setTiers({ ...tiers, budget: b })} /> : <p>The model has no routed experts: there is no budget to move.</p>)}
      <section class="card">
        <h2>What machines would do with {plan?.plan.model || plan?.model || 'it'}</h2>
        <form class="row one" onSubmit={(e) => { e.preventDefault(); ask(sizes) }}>
          <label class="field inline">RAM in GiB <input value={sizes} onInput={(e) => setSizes(e.target.value)} size={34} inputMode="numeric" /></label>
          <button type="submit">Plan</button>
        </form>
        {wrong && <p class="wrong" role="alert">{wrong}</p>}
        {plan && (
          <>
            <div class="scroll-x" tabIndex={0} role="region" aria-label="plan">
              <table class="plan">
                <thead><tr><th scope="col">RAM</th><th scope="col">budget</th><th scope="col">experts in RAM</th><th scope="col">found there</th><th scope="col">read a token</th><th scope="col">tokens/s</th><th scope="col">prompt tokens/s</th><th scope="col">+1 GB</th><th scope="col">limit</th></tr></thead>
                <tbody>
                  {plan.this_machine && <Row r={plan.this_machine} name={`this machine, ${gib(plan.this_machine.ram)}`} here />}
                  <Row r={plan.now} name="as it runs now" here />
                  {plan.rows.map((r) => <Row key={r.ram} r={r} name={gib(r.ram)} />)}
                </tbody>
              </table>
            </div>
            <p class="hint">Rates of {plan.plan.machine.name}: memory {bytes(plan.plan.machine.memory)}/s, disk {bytes(plan.plan.machine.disk)}/s, {plan.plan.machine.threads} threads ({plan.plan.machine.source}). Every context is counted as full; until it is, experts have its room. Hit rates: {plan.plan.curve_source}, give or take {percent(plan.plan.curve_error)}. Context {plan.plan.ctx}, {plan.plan.parallel} at a time.</p>
          </>
        )}
      </section>
    </main>
  )
}
