// What the tests and measurements of the page share: the server, the browser, a question in the chat.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..')
export const terrace = resolve(process.env.TERRACE ?? join(root, 'bin/terrace'))
export const tiny = join(root, 'testdata/tiny-moe-Q4_K.gguf')

// start runs `terrace serve` without anything kept from earlier, and waits until it is ready.
export async function start(model, ...flags) {
  const cache = mkdtempSync(join(tmpdir(), 'terrace-web-'))
  const child = spawn(terrace, ['serve', '-m', model, '--port', '0', '--heat', 'off', '--cache-ram', '0', ...flags], { env: { ...process.env, XDG_CACHE_HOME: cache } })
  const ended = new Promise((ok) => child.on('exit', ok))
  let log = ''
  const url = await new Promise((ok, fail) => {
    child.stderr.on('data', (d) => {
      log += d
      const at = log.match(/listening on (http:\/\/[^,]+),/)
      if (at && log.includes('ready:')) ok(at[1])
    })
    ended.then(() => fail(new Error('terrace serve ended: ' + log)))
  })
  const stop = async () => {
    child.kill('SIGTERM')
    await ended
    rmSync(cache, { recursive: true, force: true })
  }
  return { url, stop, pid: child.pid }
}

export function launch() {
  const programs = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
  const executablePath = programs.find((p) => p && existsSync(p))
  assert.ok(executablePath, 'no Chromium: install chromium, or name one by CHROMIUM')
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] })
}

export async function ask(page, text) {
  await page.getByLabel('Message', { exact: true }).fill(text)
  await page.keyboard.press('Enter')
}

export const answers = (page, state = 'done') => page.locator(`.message.assistant[data-state=${state}]`)
