// Drives the page in headless Chromium against `terrace serve` (bin/terrace, or TERRACE). It needs no network: Chromium is the
// system's (or CHROMIUM), models are those of testdata/.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { ask, answers, launch, root, start, tiny } from './drive.mjs'

const random = join(root, 'testdata/protocol-random/protocol-random.gguf')
const question = 'What is the capital of France?'
const patience = 20000 // ms for one step

// serve starts a server and waits until it is ready. At the end of the test the pages are closed before it is stopped.
async function serve(t, model, ...flags) {
  const s = await start(model, ...flags)
  t.after(async () => {
    const seen = visits.splice(0)
    for (const { context } of seen) await context.close()
    await s.stop()
    for (const { page } of seen) assert.deepEqual(page.wrong, [])
  })
  return s
}

let browser
before(async () => { browser = await launch() })
after(() => browser?.close())

// visit opens a page that fails the test by a console error, an exception or a request to elsewhere.
const visits = []
async function visit(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: 'light', ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(patience)
  const host = new URL(url).host
  page.wrong = []
  page.on('console', (m) => m.type() === 'error' && page.wrong.push('console: ' + m.text()))
  page.on('pageerror', (e) => page.wrong.push('exception: ' + e.message))
  page.on('request', (r) => /^(https?|wss?):/.test(r.url()) && new URL(r.url()).host !== host && page.wrong.push('request to ' + r.url()))
  visits.push({ page, context })
  await page.goto(url)
  return page
}

const get = async (url, key) => (await fetch(url, key ? { headers: { Authorization: 'Bearer ' + key } } : {})).json()

// set fills in parameters through the panel.
async function set(page, params) {
  await page.getByRole('button', { name: 'Parameters', exact: true }).click()
  for (const [name, value] of Object.entries(params)) {
    const field = page.locator(`.panel [name=${name}]`)
    if (await field.evaluate((e) => e.tagName === 'SELECT')) await field.selectOption(value)
    else await field.fill(value)
  }
  await page.getByRole('button', { name: 'Close the parameters' }).click()
}

test('chat: an answer, edit, regenerate, versions, reload', async (t) => {
  const s = await serve(t, tiny, '-c', '1024', '--temp', '0', '--expert-ram', '60%')
  const page = await visit(s.url)
  await page.getByLabel('Message', { exact: true }).waitFor()
  await ask(page, question)
  await answers(page).first().waitFor()
  assert.match(await answers(page).first().innerText(), /Paris/)
  assert.match(await answers(page).first().innerText(), /tokens, [\d.\u202f]+ a second/)

  await page.locator('.message.user').getByRole('button', { name: 'Edit' }).click()
  await page.getByLabel('Edit the message').fill('What is the capital of Italy?')
  await page.keyboard.press('Enter')
  await page.locator('.message.user .versions').waitFor()
  await answers(page).first().waitFor()
  assert.match(await page.locator('.message.user').innerText(), /Italy[^]*2\/2/)
  assert.equal(await page.locator('.message').count(), 2)
  await page.getByRole('button', { name: 'Version before' }).click()
  assert.match(await page.locator('.message.user').innerText(), /France[^]*1\/2/)
  assert.match(await answers(page).first().innerText(), /Paris/)

  await page.getByRole('button', { name: 'Regenerate' }).click()
  await page.locator('.message.assistant .versions').waitFor()
  await answers(page).first().waitFor()
  assert.match(await page.locator('.message.assistant').innerText(), /Paris[^]*2\/2/)

  // A second conversation; both are there after a reload, and Regenerate's two versions.
  await page.keyboard.press('Control+Shift+O')
  await ask(page, 'What is the capital of Spain?')
  await answers(page).first().waitFor()
  assert.equal(await page.locator('.conversations li').count(), 2)
  await page.reload()
  await answers(page).first().waitFor()
  assert.match(await page.locator('.message.user').innerText(), /Spain/)
  await page.locator('.conversations .title', { hasText: 'France' }).click()
  assert.match(await page.locator('.messages').innerText(), /France[^]*Paris[^]*2\/2/)

  // Another conversation's buttons come with the pointer.
  await page.locator('.conversations li', { hasText: 'Spain' }).hover()
  page.once('dialog', (d) => d.accept())
  await page.getByRole('button', { name: /^Delete What is the capital of Spain/ }).click()
  await page.reload()
  await answers(page).first().waitFor()
  assert.equal(await page.locator('.conversations li').count(), 1)
})

test('chat: stop ends the work, what was written stays', async (t) => {
  const s = await serve(t, tiny, '-c', '4096', '--expert-ram', '20%')
  const page = await visit(s.url)
  // A grammar of digits goes on until it is stopped, whatever the weights.
  await page.route('**/v1/chat/completions', (r) => r.continue({ postData: JSON.stringify({ ...r.request().postDataJSON(), grammar: 'root ::= [0-9 ]+', ignore_eos: true }) }))
  await ask(page, 'Count.')
  await page.locator('.message.assistant .markdown').waitFor()
  await page.waitForFunction(() => document.querySelector('.message.assistant .markdown').innerText.length > 20)
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  await answers(page, 'stopped').waitFor()
  const text = await page.locator('.message.assistant .markdown').innerText()
  let busy = true
  for (let i = 0; busy && i < 30; i++) {
    await new Promise((r) => setTimeout(r, 100))
    busy = (await get(s.url + '/slots')).some((x) => x.is_processing)
  }
  assert.ok(!busy, 'the slot still works three seconds after Stop')
  await page.reload()
  await answers(page, 'stopped').waitFor()
  assert.equal(await page.locator('.message.assistant .markdown').innerText(), text)
  await ask(page, 'Count again.')
  await page.waitForFunction(() => document.querySelectorAll('.message.assistant .markdown').length === 2)
  await page.keyboard.press('Escape')
  await page.waitForFunction(() => document.querySelectorAll('.message.assistant[data-state=stopped]').length === 2)
})

test('chat: Markdown, code, JSON, hostile text', async (t) => {
  const s = await serve(t, tiny, '-c', '512')
  const page = await visit(s.url)
  const text = '# Title\n\nSome **bold** and `code` & [a link](https://example.com/) and [a trap](javascript:alert(1)).\n\n' +
    '| a | b |\n|---|--:|\n| 1 | 2 |\n\n```go\nfunc main() { println("<b>") }\n```\n\n<img src=x onerror=alert(1)><script>alert(1)</script>\n\n![far](https://example.com/a.png)\n\n- one\n- [x] two\n'
  const chunk = (delta, more = {}) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null, ...more }] })}\n\n`
  let reply = text
  await page.route('**/v1/chat/completions', (r) => r.fulfill({ contentType: 'text/event-stream', body: chunk({ reasoning_content: 'First *this*.' }) + chunk({ content: reply }) + chunk({}, { finish_reason: 'stop' }) + 'data: [DONE]\n\n' }))
  await ask(page, 'Show me.')
  await answers(page).waitFor()
  const m = page.locator('.message.assistant > .markdown')
  assert.equal(await m.locator('h3').innerText(), 'Title')
  assert.equal(await m.locator('strong').innerText(), 'bold')
  assert.equal(await m.locator('td').nth(1).innerText(), '2')
  assert.equal(await m.locator('.code .hljs-keyword').first().innerText(), 'func')
  assert.equal(await m.locator('a').first().getAttribute('rel'), 'noopener noreferrer')
  assert.equal(await m.locator('a', { hasText: 'trap' }).count(), 0)
  assert.equal(await m.locator('img, script').count(), 0)
  assert.match(await m.innerText(), /<img src=x/)
  assert.equal(await page.locator('.reasoning').getAttribute('open'), null)
  await page.locator('.reasoning summary').click()
  assert.equal(await page.locator('.reasoning em').innerText(), 'this')
  reply = '{"place":"Paris","sure":true}'
  await page.getByRole('button', { name: 'Regenerate' }).click()
  await page.locator('.message.assistant > .code').waitFor()
  assert.match(await page.locator('.message.assistant > .code pre').innerText(), /\{\n {2}"place": "Paris",/)
})

test('chat: tools and schemas of a model that knows them', async (t) => {
  const s = await serve(t, random, '-c', '2048')
  const page = await visit(s.url)
  await page.getByLabel('Message', { exact: true }).waitFor()
  await set(page, { format: 'schema', seed: '7' })
  await set(page, { schema: '{"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":9}},"required":["n"]}', thinking_budget: '12' })
  const first = page.waitForRequest('**/v1/chat/completions')
  await ask(page, 'A number.')
  assert.equal((await first).postDataJSON().reasoning_budget_tokens, 12)
  await answers(page).first().waitFor()
  assert.match(await page.locator('.message.assistant .code pre').innerText(), /^\{\s+"n": [1-9]\s+\}/)
  await page.getByRole('button', { name: 'New conversation' }).click()
  await set(page, { format: '', max_tokens: '300', tool_choice: 'required', tools: '[{"name":"weather","parameters":{"type":"object","properties":{"place":{"enum":["Paris"]}},"required":["place"]}}]' })
  await ask(page, 'The weather?')
  await answers(page).first().waitFor()
  assert.match(await page.locator('.calls').innerText(), /calls weather[^]*"place": "Paris"/)
  const body = page.waitForRequest('**/v1/chat/completions')
  await page.getByLabel('Result of weather').fill('{"sky":"blue"}')
  await page.getByRole('button', { name: 'Send the result' }).click()
  const sent = (await body).postDataJSON()
  assert.deepEqual(sent.messages.map((m) => m.role), ['user', 'assistant', 'tool'])
  assert.equal(sent.messages[2].tool_call_id, sent.messages[1].tool_calls[0].id)
  await page.waitForFunction(() => document.querySelectorAll('.message.assistant[data-state=done]').length === 2)
  await set(page, { tools: '[{' })
  await page.getByRole('button', { name: 'Parameters', exact: true }).click()
  assert.match(await page.locator('.panel .wrong').innerText(), /^Tools: no JSON/)
})

test('monitor moves while tokens stream and agrees with /v1/tiers; the slider resizes', async (t) => {
  const s = await serve(t, tiny, '-c', '1024', '--ram', '120M', '--lookahead', '1')
  const page = await visit(s.url + '/#/monitor')
  await page.locator('#live[data-state=live]').waitFor()
  const before = +await page.locator('#live').getAttribute('data-tokens')
  const drawn = () => page.evaluate(() => document.querySelector('.map canvas').map.drawn)
  const still = await drawn()
  const work = fetch(s.url + '/completion', { method: 'POST', body: JSON.stringify({ prompt: 'Once upon a time', n_predict: 300, ignore_eos: true, temperature: 1 }) })
  await page.waitForFunction((n) => +document.querySelector('#live').dataset.tokens > n + 20, before)
  await page.waitForFunction((n) => document.querySelector('.map canvas').map.drawn > n + 5, still)
  assert.match(await page.locator('#live').innerText(), /Tokens a second\s+[\d.]+/)
  await page.waitForTimeout(1200)
  await work
  await page.locator('.limit').waitFor()
  await page.waitForFunction(async () => {
    const t = await (await fetch('/v1/tiers?detail=experts')).json()
    const feed = document.querySelector('.map canvas').map.feed
    return String.fromCharCode(...feed.tier) === atob(t.experts.tier) && +document.querySelector('#live').dataset.ram === t.tiers.ram.experts
  })
  const keys = page.getByRole('application')
  await keys.focus()
  await keys.press('ArrowRight')
  await keys.press('ArrowRight')
  await keys.press('ArrowDown')
  assert.match(await page.locator('.about').innerText(), /^Layer 1, expert 1: (in RAM|on disk)/)

  await page.getByRole('link', { name: 'Planner' }).click()
  await page.locator('.plan tbody tr').nth(3).waitFor()
  await page.locator('#budget').waitFor()
  const tiers = await get(s.url + '/v1/tiers')
  await page.getByRole('button', { name: 'Least' }).click()
  await page.getByText(/^The budget is/).waitFor()
  const less = await get(s.url + '/v1/tiers')
  assert.equal(less.budget.ram, less.budget.ram_least)
  assert.ok(less.tiers.ram.slots < tiers.tiers.ram.slots, `${less.tiers.ram.slots} of ${tiers.tiers.ram.slots} places`)
  await page.locator('#budget').focus()
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight')
  await page.waitForFunction(async (n) => (await (await fetch('/v1/tiers')).json()).budget.ram > n, less.budget.ram)
  await page.locator('#budget').press('End')
  await page.waitForFunction(async (n) => (await (await fetch('/v1/tiers')).json()).budget.ram === n, tiers.budget.ram_start)
  await page.waitForTimeout(800)
  await page.getByLabel('RAM in GiB').fill('16, 20')
  await page.getByRole('button', { name: 'Plan', exact: true }).click()
  await page.waitForFunction(() => document.querySelectorAll('.plan tbody tr').length === 4)
})

test('a key is asked for, and kept for the tab', async (t) => {
  const s = await serve(t, tiny, '-c', '512', '--temp', '0', '--api-key', 'secret', '--api-prefix', '/deep')
  const page = await visit(s.url + '/deep')
  assert.equal(page.url(), s.url + '/deep/')
  await page.getByText('This server wants a key').waitFor()
  assert.deepEqual(page.wrong, [])
  await page.getByLabel('Key', { exact: true }).fill('wrong')
  await page.keyboard.press('Enter')
  await page.getByText('The server does not know this key.').waitFor()
  assert.ok(page.wrong.splice(0).every((w) => w.includes('401'))) // Chromium's own line about the refusal
  await page.getByLabel('Key', { exact: true }).fill('secret')
  await page.keyboard.press('Enter')
  await ask(page, question)
  await answers(page).first().waitFor()
  assert.match(await answers(page).first().innerText(), /Paris/)
  await page.reload()
  await answers(page).first().waitFor()
  assert.equal(await page.evaluate(() => [sessionStorage.getItem('terrace-key'), localStorage.getItem('terrace-key')].join()), 'secret,')
  await page.goto(s.url + '/deep/#/monitor')
  await page.locator('#live[data-state=live]').waitFor()
})

test('dark and phone', async (t) => {
  const s = await serve(t, tiny, '-c', '1024', '--temp', '0', '--ram', '120M', '--lookahead', '1')
  const page = await visit(s.url, { colorScheme: 'dark' })
  assert.equal(await page.locator('html').getAttribute('data-theme'), 'dark')
  await ask(page, question)
  await answers(page).first().waitFor()
  const work = fetch(s.url + '/completion', { method: 'POST', body: JSON.stringify({ prompt: 'Once upon a time', n_predict: 400, ignore_eos: true, temperature: 1 }) })
  await page.getByRole('link', { name: 'Monitor' }).click()
  await page.locator('#live[data-state=live]').waitFor()
  await page.waitForTimeout(2500)
  const phone = await visit(s.url + '/#/monitor', { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true })
  await phone.locator('#live[data-state=live]').waitFor()
  await phone.waitForTimeout(1500)
  for (const view of ['monitor', 'planner', 'chat']) {
    await phone.goto(s.url + '/#/' + view)
    if (view === 'planner') await phone.locator('.plan tbody tr').first().waitFor()
    if (view === 'chat') {
      await ask(phone, question)
      await answers(phone).first().waitFor()
    }
    const [wide, seen] = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth])
    assert.ok(wide <= seen, `${view}: ${wide} pixels on a screen of ${seen}`)
  }
  await phone.getByRole('button', { name: /Conversations/ }).click()
  await phone.getByRole('button', { name: 'New conversation' }).waitFor()
  await work
})

test('every control has a name', async (t) => {
  const s = await serve(t, tiny, '-c', '512')
  const page = await visit(s.url)
  for (const view of ['chat', 'monitor', 'planner']) {
    await page.goto(s.url + '/#/' + view)
    await page.locator('main').waitFor()
    if (view === 'chat') await page.getByRole('button', { name: 'Parameters', exact: true }).click()
    await page.waitForTimeout(300)
    const nameless = await page.evaluate(() => [...document.querySelectorAll('button, a, input, select, textarea, canvas[tabindex], [role=img]')]
      .filter((e) => !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length)).map((e) => e.outerHTML))
    assert.deepEqual(nameless, [])
    assert.equal(await page.locator('main').count(), 1)
  }
})
