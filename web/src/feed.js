// Where the experts are, live: the stream /v1/tiers/stream, followed while somebody looks.
import { events } from './api.js'

export const places = ['on disk', 'read waits', 'being read', 'in RAM', 'in VRAM']

export function decode(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))
}

export function words(base64) {
  return new Uint32Array(decode(base64).buffer)
}

const span = 3000 // ms over which tokens a second are counted
const again = [500, 1000, 2000, 5000] // ms before another try

export class Feed {
  state = 'off' // off, waiting, live, none (the model has no routed experts), failed
  error = ''
  counts = []
  tier = new Uint8Array(0)
  heat = new Uint8Array(0)
  at = [0, 0, 0, 0, 0] // experts by place
  tokens = 0 // since the stream began
  #recent = [] // {t, tokens}
  #watching = new Set()
  #end = null

  // subscribe calls f with the kind of change: state, delta, heat or status; for a delta with what was routed.
  subscribe(f) {
    this.#watching.add(f)
    return () => this.#watching.delete(f)
  }

  #tell(kind, routed) {
    this.#watching.forEach((f) => f(kind, routed))
  }

  start() {
    if (this.#end) return
    this.#end = new AbortController()
    this.#follow(this.#end.signal)
  }

  stop() {
    this.#end?.abort()
    this.#end = null
    this.#set('off')
  }

  #set(state, error = '') {
    this.state = state
    this.error = error
    this.#tell('status')
  }

  async #follow(signal) {
    for (let tries = 0; !signal.aborted; tries++) {
      this.#set('waiting', this.error)
      try {
        for await (const { event, data } of events('v1/tiers/stream', { signal })) {
          this.take(event, JSON.parse(data))
          tries = 0
        }
      } catch (e) {
        if (signal.aborted) return
        if (e.status === 501) return this.#set('none', e.message)
        this.#set('failed', e.message)
        if (e.status === 401) return
      }
      await new Promise((r) => setTimeout(r, again[Math.min(tries, again.length - 1)]))
    }
  }

  take(event, v) {
    if (event === 'state') {
      this.counts = v.counts
      this.tier = decode(v.tier)
      if (this.heat.length !== this.tier.length) this.heat = new Uint8Array(this.tier.length)
      this.#recent = []
      this.at.fill(0)
      for (const p of this.tier) this.at[p & 15]++
      this.#set('live')
      this.#tell('state')
      return
    }
    if (event !== 'delta') return
    for (const w of words(v.moved)) {
      const i = w >>> 8, p = w & 255
      this.at[this.tier[i] & 15]--
      this.at[p & 15]++
      this.tier[i] = p
    }
    this.tokens += v.tokens
    this.#recent.push({ t: performance.now(), tokens: v.tokens })
    this.#tell('delta', words(v.routed))
  }

  setHeat(heat) {
    if (heat.length !== this.tier.length) return
    this.heat = heat
    this.#tell('heat')
  }

  // rate is tokens a second of the last moments, those of prompts too.
  rate() {
    const now = performance.now()
    while (this.#recent.length && now - this.#recent[0].t > span) this.#recent.shift()
    let n = 0
    for (const r of this.#recent) n += r.tokens
    return this.#recent.length < 2 ? 0 : n / Math.max(500, now - this.#recent[0].t + 100) * 1000
  }
}
