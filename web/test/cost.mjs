// What a plain client of /v1/tiers/stream costs the engine: the same greedy answer with and without one, in alternating
// pairs. usage: node cost.mjs [MODEL [PAIRS [TOKENS]]] [-- FLAGS of terrace serve]. The client is curl, into nothing. On Linux
// the server's processor time is compared too, which other programs on the machine disturb less.
import { spawn } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { start, tiny } from './drive.mjs'

const cut = process.argv.indexOf('--')
const own = process.argv.slice(2, cut < 0 ? undefined : cut), flags = cut < 0 ? [] : process.argv.slice(cut + 1)
const [model = tiny, pairs = 10, tokens = 400] = own
const { url, stop, pid } = await start(model, ...flags)
const wait = (ms) => new Promise((r) => setTimeout(r, ms))

// worked is the server's processor time in ms, NaN where there is no telling.
function worked() {
  const tasks = `/proc/${pid}/task`
  if (!existsSync(tasks)) return NaN
  return readdirSync(tasks).reduce((sum, id) => sum + Number(readFileSync(`${tasks}/${id}/schedstat`, 'utf8').split(' ')[0]) / 1e6, 0)
}

// answer gives the tokens of a second and of a second of processor time.
async function answer(watched) {
  const client = watched && spawn('curl', ['-sN', '-o', '/dev/null', url + '/v1/tiers/stream'], { stdio: 'ignore' })
  await wait(300)
  const body = { prompt: 'Once upon a time', n_predict: +tokens, ignore_eos: true, temperature: 0, cache_prompt: false }
  const before = worked()
  const { timings } = await (await fetch(url + '/completion', { method: 'POST', body: JSON.stringify(body) })).json()
  const ms = worked() - before
  if (watched && client.exitCode !== null) throw new Error('the client ended')
  client && client.kill()
  await wait(100)
  return [timings.predicted_per_second, +tokens / ms * 1000]
}

await answer(false)
const gains = [[], []]
for (let i = 0; i < +pairs; i++) {
  const first = i % 2 === 0
  const a = await answer(first), b = await answer(!first)
  const [on, off] = first ? [a, b] : [b, a]
  gains.forEach((g, k) => g.push(100 * (on[k] / off[k] - 1)))
  console.log(`pair ${i + 1}: ${off[0].toFixed(2)} tokens/s alone, ${on[0].toFixed(2)} watched, ${gains[0][i].toFixed(2)} %; of processor time ${gains[1][i].toFixed(2)} %`)
}
gains.forEach((g, k) => {
  g.sort((a, b) => a - b)
  const at = (q) => { const x = q * (g.length - 1), i = Math.floor(x); return g[i] + (x - i) * ((g[i + 1] ?? g[i]) - g[i]) }
  console.log(`${k ? 'tokens of a second of processor time' : 'tokens/s'}: median of ${g.length} pairs ${at(0.5).toFixed(2)} %, quarters ${at(0.25).toFixed(2)} to ${at(0.75).toFixed(2)} %, all ${g[0].toFixed(2)} to ${g.at(-1).toFixed(2)} %`)
})
await stop()
