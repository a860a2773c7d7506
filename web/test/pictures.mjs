// Makes the pictures of the page in docs/img, from the demo model at work: usage: node pictures.mjs [FOLDER]. pngquant, where it
// is installed, makes them small enough to be kept.
import { spawnSync } from 'node:child_process'
import { join, resolve } from 'node:path'
import { ask, answers, launch, root, start, tiny } from './drive.mjs'

const folder = resolve(process.argv[2] ?? join(root, 'docs/img'))
const s = await start(tiny, '-c', '1024', '--temp', '0', '--ram', '132M', '--lookahead', '1')
const browser = await launch()

async function keep(page, name) {
  const path = join(folder, name + '.png')
  await page.screenshot({ path })
  const r = spawnSync('pngquant', ['--force', '--skip-if-larger', '--quality', '70-98', '--speed', '1', '--strip', '--output', path, path])
  if (r.error) console.error(`${path} is kept as it is: ${r.error.message}`)
}

async function open(view, colorScheme, height, more = {}) {
  const context = await browser.newContext({ viewport: { width: 1180, height }, deviceScaleFactor: 1.5, colorScheme, ...more })
  const page = await context.newPage()
  page.setDefaultTimeout(60000)
  await page.goto(`${s.url}/#/${view}`)
  return page
}

async function talk(page, ...questions) {
  for (let i = 0; i < questions.length; i++) {
    await ask(page, questions[i])
    await answers(page).nth(i).waitFor()
  }
}

// tell has the model write stories until it is told to end.
function tell() {
  const end = new AbortController()
  const body = JSON.stringify({ prompt: 'Once upon a time', n_predict: 900, ignore_eos: true, temperature: 1, seed: 5 })
  const done = (async () => {
    while (!end.signal.aborted) await (await fetch(s.url + '/completion', { method: 'POST', body, signal: end.signal })).text()
  })().catch((e) => { if (e.name !== 'AbortError') throw e })
  return async () => { end.abort(); await done }
}

const subjects = [['How do you say sun in French?'], ['Who wrote Moby-Dick?', 'What does cap mean?']]
const light = await open('chat', 'light', 700)
for (const q of subjects) {
  await talk(light, ...q)
  await light.getByRole('button', { name: 'New conversation' }).click()
}
await talk(light, 'What is a mixture of experts?', 'What is the capital of France?', 'What is the currency of Australia?')
await keep(light, 'web-chat-light')

const dark = await open('chat', 'dark', 750)
await talk(dark, 'What can you do?', 'What is 26 minus 15?', 'How do you say fire in German?')
await dark.getByRole('button', { name: 'Parameters', exact: true }).click()
await keep(dark, 'web-chat-dark')

let end = tell()
const monitor = await open('monitor', 'light', 860)
await monitor.waitForTimeout(6000)
await keep(monitor, 'web-monitor-light')
const night = await open('monitor', 'dark', 860)
await night.waitForTimeout(3000)
await night.locator('.map .over').hover({ position: { x: 500, y: 60 } })
await keep(night, 'web-monitor-dark')

const planner = await open('planner', 'light', 860)
await planner.getByLabel('RAM in GiB').fill('0.24, 0.26, 0.28, 0.5, 4, 8, 16')
await planner.getByRole('button', { name: 'Plan', exact: true }).click()
await planner.locator('.plan tbody tr').nth(8).waitFor()
await planner.locator('#budget').focus()
for (let i = 0; i < 4; i++) await planner.keyboard.press('ArrowLeft')
await planner.waitForTimeout(4000)
await planner.locator('#budget').blur()
await keep(planner, 'web-planner')
await planner.getByRole('button', { name: 'As started' }).click()
await planner.getByText(/^The budget is/).waitFor()

const small = { width: 390, height: 780 }
const phones = []
for (const [view, scheme] of [['monitor', 'dark'], ['planner', 'light'], ['chat', 'dark']]) {
  const phone = await open(view, scheme, 0, { viewport: small, isMobile: true, hasTouch: true })
  if (view === 'chat') {
    await end()
    await talk(phone, 'What is a mixture of experts?', 'What is the capital of France?')
  }
  if (view === 'planner') await phone.locator('.plan tbody tr').nth(3).waitFor()
  await phone.waitForTimeout(3000)
  phones.unshift((await phone.screenshot()).toString('base64'))
}
const sheet = await browser.newPage({ viewport: { width: 3 * small.width + 80, height: small.height + 40 }, deviceScaleFactor: 1 })
await sheet.setContent('<style>body { margin: 0; display: flex; gap: 20px; padding: 20px; background: #8d877d } img { width: 390px; height: 780px; border-radius: 18px }</style>' + phones.map((p) => `<img src="data:image/png;base64,${p}">`).join(''))
await sheet.waitForFunction(() => [...document.images].every((i) => i.complete))
await keep(sheet, 'web-phone')
await browser.close()
await s.stop()
