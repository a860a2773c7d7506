// The server: one origin, one key, JSON and server-sent events. Paths are relative to where the page lies, so that a
// prefix (--api-prefix) needs no setting.

const base = new URL('.', location.href)
const slot = 'terrace-key' // in sessionStorage: the key is gone with the tab

let key = sessionStorage.getItem(slot) ?? ''
const asked = new Set()

export const hasKey = () => key !== ''

export function setKey(k) {
  key = k
  if (k) sessionStorage.setItem(slot, k)
  else sessionStorage.removeItem(slot)
}

// onKeyWanted calls f when the server refused the key.
export function onKeyWanted(f) {
  asked.add(f)
  return () => asked.delete(f)
}

// Failure is a refusal by the server: its words, and its status (0: it was not reached).
export class Failure extends Error {
  constructor(message, status, more = {}) {
    super(message)
    this.status = status
    this.more = more
  }
}

async function request(path, { body, signal } = {}) {
  const headers = {}
  if (key) headers.Authorization = 'Bearer ' + key
  if (body !== undefined) headers['Content-Type'] = 'application/json'
  let res
  try {
    res = await fetch(new URL(path, base), {
      method: body === undefined ? 'GET' : 'POST', headers, signal, cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    })
  } catch (e) {
    if (e.name === 'AbortError') throw e
    throw new Failure('the server cannot be reached', 0)
  }
  if (res.ok) return res
  let error
  try {
    error = (await res.json()).error
  } catch { /* no error object: its status must do */ }
  if (res.status === 401) {
    setKey('')
    asked.forEach((f) => f())
  }
  throw new Failure(error?.message ?? `the server answered ${res.status}`, res.status, error)
}

export async function get(path, signal) {
  return (await request(path, { signal })).json()
}

export async function post(path, body, signal) {
  return (await request(path, { body, signal })).json()
}

// events gives the server-sent events of a reply, each as {event, data}. A comment line gives nothing.
export async function* events(path, { body, signal } = {}) {
  const res = await request(path, { body, signal })
  const reader = res.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = '', event = '', data = []
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    const lines = (rest + value).split('\n')
    rest = lines.pop()
    for (const line of lines) {
      if (line.startsWith('data:')) data.push(line.slice(5).trimStart())
      else if (line.startsWith('event:')) event = line.slice(6).trim()
      else if (line === '' || line === '\r') {
        if (data.length) yield { event, data: data.join('\n') }
        event = ''
        data = []
      }
    }
  }
}
