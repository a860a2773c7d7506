// How long the monitor's map takes to draw 24,576 experts (48 layers of 512, 10 used by a token) while a stream is replayed:
// usage: node draw.mjs [SECONDS]. The stream is made ahead, of tokens with skewed choices through a least-recently-used
// cache of a quarter of the experts, and served ten times a second as terrace serve does, by a server in this process.
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { cpus } from 'node:os'
import { dirname, extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { launch } from './drive.mjs'

const dist = join(dirname(fileURLToPath(import.meta.url)), '../dist')
const seconds = Number(process.argv[2] ?? 20)
const layers = 48, experts = 512, topK = 10, tokensEach = 2, limit = 10
const total = layers * experts

let seed = 1
const random = () => { // xorshift: the same stream each time
  seed ^= seed << 13; seed ^= seed >>> 17; seed ^= seed << 5
  return (seed >>> 0) / 2 ** 32
}
const b64 = (words) => Buffer.from(Uint32Array.from(words).buffer).toString('base64')

function record() {
  const tier = new Uint8Array(total), heat = new Uint8Array(total), used = new Map() // in order of use
  for (let i = 0; i < total; i += 4) {
    tier[i] = 3
    used.set(i, 1)
  }
  for (let i = 0; i < total; i++) heat[i] = Math.floor(255 * random() ** 4)
  const first = Buffer.from(tier).toString('base64')
  const deltas = []
  for (let n = 0; n < seconds * 10; n++) {
    const routed = new Map(), moved = new Map()
    for (let t = 0; t < tokensEach; t++) for (let l = 0; l < layers; l++) for (let k = 0; k < topK; k++) {
      const e = l * experts + (Math.floor(experts * random() ** 3) * 167 + l * 31) % experts
      routed.set(e, (routed.get(e) ?? 0) + 1)
      if (!used.delete(e)) {
        const [out] = used.keys()
        used.delete(out)
        tier[out] = 0
        moved.set(out, 0)
        tier[e] = 3
        moved.set(e, 3)
      }
      used.set(e, 1)
    }
    deltas.push({ t_ms: 100 * n, passes: tokensEach, tokens: tokensEach, missed: 0, routed: b64([...routed].map(([e, c]) => e << 8 | c)), moved: b64([...moved].map(([e, p]) => e << 8 | p)) })
  }
  return { first, heat: Buffer.from(heat).toString('base64'), deltas, last: Buffer.from(tier).toString('base64'), resident: used.size }
}

const made = record()
const hits = { touches: 1000, vram: null, ram: 700, in_flight: 0, misses: 300, evictions: 300, hit_rate: 0.7 }
const tiers = {
  object: 'terrace.tiers', schema: 1, model: 'replay', tiers: { vram: null, ram: { experts: made.resident, pinned: 0, slots: made.resident, slot_bytes: 1e9, target_bytes: 1e9, most_bytes: 4e9 }, disk: { experts: total, bytes: 4e9 } },
  hits, recent: { ended_ms: 0, busy_ms: 10000, passes: 200, tokens: 200, hits, bytes_read: 1e9, disk_busy_ms: 5000, blocked_ms: 4000, disk_bytes_per_second: 2e8 },
  layers: Array.from({ length: layers }, (_, layer) => ({ layer, experts, vram: null, ram: 128, loading: 0, pinned: 0, bytes: 1e8, touches: 100, hits_ram: 70, misses: 30, ram_bytes: 2e7, hit_rate: 0.7 })),
  disk: { store: 'replay', bytes_read: { demand: 1, guess: 1, preload: 1 } }, prefetch: { predictor: 'gate-ahead', lookahead: 2, experts: { issued: 100, used: 80, late: 5, wasted: 10, cancelled: 5 } },
  batching: { slots: 4, processing: 1, deferred: 0 }, budget: { ram: 2e9, ram_now: 2e9, ram_start: 2e9, ram_least: 1e9, ram_full: 5e9, limited_by: '', vram: null, parts: { arena: 1e9, dense: 5e8, kv: 1e8, work: 1e8, runtime: 1e8, table: 0, predictor: 0, prompt_cache: 0 } },
  limit: { code: 'disk', words: 'a replay', waiting: 0.4, terms: { disk_ms: 10, memory_ms: 20, compute_ms: 5 } }, one_more_gb: { words: 'a replay' },
}
const answers = {
  '/ui.json': { key: false, ready: true, build: 'replay' }, '/props': { model_alias: 'replay', default_generation_settings: { params: {}, n_ctx: 1024 } },
}
let over = () => {}
const replayed = new Promise((ok) => { over = ok })
const server = createServer((req, res) => {
  const { pathname, searchParams } = new URL(req.url, 'http://localhost')
  if (pathname === '/v1/tiers/stream') {
    res.writeHead(200, { 'Content-Type': 'text/event-stream' })
    res.write(`event: state\ndata: ${JSON.stringify({ counts: Array(layers).fill(experts), tier: made.first })}\n\n`)
    let n = 0
    const timer = setInterval(() => {
      if (n === made.deltas.length) return clearInterval(timer), setTimeout(over, 1500)
      res.write(`event: delta\ndata: ${JSON.stringify(made.deltas[n++])}\n\n`)
    }, 100)
    req.on('close', () => clearInterval(timer))
    return
  }
  const v = pathname === '/v1/tiers' ? (searchParams.has('detail') ? { ...tiers, experts: { counts: [], tier: '', heat: made.heat } } : tiers) : answers[pathname]
  if (v) return res.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(v))
  const file = join(dist, pathname === '/' ? 'index.html' : pathname.slice(1))
  if (!existsSync(file)) return res.writeHead(404).end()
  res.writeHead(200, { 'Content-Type': { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' }[extname(file)] ?? 'text/plain' }).end(readFileSync(file))
}).listen(0, '127.0.0.1')
await new Promise((ok) => server.on('listening', ok))
const browser = await launch()
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } })
const wrong = []
page.on('pageerror', (e) => wrong.push(e.message))
await page.goto(`http://127.0.0.1:${server.address().port}/#/monitor`)
await page.locator('#live[data-state=live]').waitFor()
await replayed
const r = await page.evaluate(() => {
  const map = document.querySelector('.map canvas').map
  const sorted = (a) => Array.from(a).sort((x, y) => x - y)
  const of = (a) => ({ n: a.length, median: a[a.length >> 1], p95: a[Math.floor(a.length * 0.95)], most: a.at(-1) })
  const frames = of(sorted(map.times.subarray(0, Math.min(map.drawn, map.times.length))))
  const whole = []
  for (let i = 0; i < 100; i++) { // all cells anew, until the pixels are there
    map.changed('heat')
    const start = performance.now()
    map.draw()
    map.ctx.getImageData(0, 0, 1, 1)
    whole.push(performance.now() - start)
  }
  return { frames, whole: of(sorted(whole)), canvas: [map.canvas.width, map.canvas.height], tier: btoa(String.fromCharCode(...map.feed.tier)), drawn: map.drawn }
})
const about = await browser.version()
await browser.close()
server.close()
server.closeAllConnections()
assert.deepEqual(wrong, [])
assert.equal(r.tier, made.last, 'the map is not where the stream led')
const ms = (v) => v.toFixed(2) + ' ms'
console.log(`Chromium ${about}, ${cpus()[0].model}, ${cpus().length} threads; ${total} experts on ${r.canvas.join(' x ')} pixels, ${made.deltas.length} deltas in ${seconds} s`)
console.log(`frames while it streams (of the page's own script): ${r.frames.n}, median ${ms(r.frames.median)}, p95 ${ms(r.frames.p95)}, most ${ms(r.frames.most)}`)
console.log(`all cells anew, until the pixels are there: ${r.whole.n}, median ${ms(r.whole.median)}, p95 ${ms(r.whole.p95)}, most ${ms(r.whole.most)}`)
assert.ok(r.frames.n >= Math.min(100, seconds * 5), `only ${r.frames.n} frames`)
assert.ok(r.frames.p95 <= limit, `p95 of a frame is ${ms(r.frames.p95)}, want at most ${limit} ms`)
