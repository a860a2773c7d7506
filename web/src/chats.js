// What the chat view shows and does: the conversations, and the answers that are under way.
import { events, Failure, get } from './api.js'
import * as store from './store.js'
import * as tree from './tree.js'
import { requestOf } from './params.js'

const drawEvery = 60 // ms between two pictures of a growing answer
const saveEvery = 1000

class Chats {
  list = [] // conversations, the latest first
  open = null
  running = new Map() // id of a conversation to the AbortController of its answer
  props = null // GET /props
  note = '' // told to screen readers
  last = null // what the tiers did in the latest answer

  #watching = new Set()
  #timer = 0
  #channel = 'BroadcastChannel' in self ? new BroadcastChannel('terrace-chats') : null

  subscribe(f) {
    this.#watching.add(f)
    return () => this.#watching.delete(f)
  }

  tell() {
    clearTimeout(this.#timer)
    this.#timer = 0
    this.#watching.forEach((f) => f())
  }

  #tellSoon() {
    this.#timer ||= setTimeout(() => this.tell(), drawEvery)
  }

  async load() {
    if (!this.open) await this.#begin()
    this.props = await get('props')
    this.tell()
  }

  async #begin() {
    await this.#read()
    this.#channel?.addEventListener('message', async () => { // another tab changed something
      if (this.running.size > 0) return
      await this.#read()
      this.tell()
    })
    addEventListener('pagehide', () => this.running.size && this.list.filter((c) => this.running.has(c.id)).forEach((c) => store.put(c)))
  }

  async #read() {
    const open = this.open?.id ?? sessionStorage.getItem('terrace-open')
    this.list = (await store.all()).sort((a, b) => b.updated - a.updated)
    for (const c of this.list) for (const n of Object.values(c.nodes)) if (n.state === 'writing') n.state = 'stopped' // the page was closed
    this.open = this.list.find((c) => c.id === open) ?? this.list[0] ?? this.create()
  }

  create() {
    const empty = this.list.find((c) => !c.head)
    this.open = empty ?? tree.newConversation(this.open?.params ?? {})
    if (!empty) this.list.unshift(this.open)
    this.tell()
    return this.open
  }

  choose(conv) {
    this.open = conv
    sessionStorage.setItem('terrace-open', conv.id)
    this.tell()
  }

  async save(conv) {
    this.list.sort((a, b) => b.updated - a.updated)
    this.tell()
    await store.put(conv)
    this.#channel?.postMessage(conv.id)
  }

  async remove(conv) {
    this.stop(conv)
    this.list = this.list.filter((c) => c !== conv)
    if (this.open === conv) this.open = this.list[0] ?? this.create()
    this.tell()
    await store.remove(conv.id)
    this.#channel?.postMessage(conv.id)
  }

  rename(conv, title) {
    conv.title = title
    return this.save(conv)
  }

  setParams(conv, params) {
    conv.params = params
    return conv.head ? this.save(conv) : this.tell()
  }

  stop(conv = this.open) {
    this.running.get(conv.id)?.abort()
  }

  send(conv, text) {
    tree.add(conv, conv.head, { role: 'user', content: text })
    return this.#answer(conv)
  }

  edit(conv, node, text) {
    tree.add(conv, node.parent, { role: 'user', content: text })
    return this.#answer(conv)
  }

  regenerate(conv, node) {
    conv.head = node.parent
    return this.#answer(conv)
  }

  // results answers the calls of tools, in their order, and goes on.
  results(conv, node, texts) {
    node.tool_calls.forEach((t, i) => tree.add(conv, conv.head, { role: 'tool', tool_call_id: t.id, name: t.name, content: texts[i] }))
    return this.#answer(conv)
  }

  show(conv, node) {
    tree.show(conv, node)
    return this.save(conv)
  }

  async #answer(conv) {
    if (this.running.has(conv.id)) return
    let body
    try {
      body = { ...requestOf(conv.params), messages: tree.messages(conv, conv.head) }
    } catch (e) { // a parameter that is no JSON
      tree.add(conv, conv.head, { role: 'assistant', content: '', state: 'failed', error: e.message })
      return this.save(conv)
    }
    const node = tree.add(conv, conv.head, { role: 'assistant', content: '', reasoning: '', tool_calls: [], state: 'writing', pieces: 0 })
    const abort = new AbortController()
    this.running.set(conv.id, abort)
    this.open = conv
    sessionStorage.setItem('terrace-open', conv.id)
    this.note = ''
    await this.save(conv)
    let saved = Date.now()
    try {
      for await (const { data } of events('v1/chat/completions', { body: { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true }, signal: abort.signal })) {
        if (data === '[DONE]') break
        take(node, JSON.parse(data))
        this.#tellSoon()
        if (Date.now() - saved > saveEvery) {
          saved = Date.now()
          store.put(conv)
        }
      }
      if (!node.finish) throw new Failure('the answer broke off', 0)
      node.state = 'done'
      this.note = 'The answer is complete.'
    } catch (e) {
      if (e.name === 'AbortError') {
        node.state = 'stopped'
        this.note = 'Stopped.'
      } else {
        node.state = 'failed'
        node.error = e instanceof Failure ? e.message : 'the answer broke off: ' + e.message
        this.note = 'Failed: ' + node.error
      }
    }
    node.ended = Date.now()
    delete node.progress
    this.running.delete(conv.id)
    await this.save(conv)
    try {
      this.last = await get('v1/tiers')
      this.tell()
    } catch { /* the line below the answers stays as it is */ }
  }
}

// take adds a chunk to an answer.
function take(node, chunk) {
  if (chunk.error) throw new Failure(chunk.error.message, chunk.error.code)
  if (chunk.prompt_progress) node.progress = chunk.prompt_progress
  if (chunk.usage) node.usage = chunk.usage
  if (chunk.timings) node.timings = chunk.timings
  const choice = chunk.choices?.[0]
  if (!choice) return
  const d = choice.delta ?? {}
  const now = Date.now()
  if (d.reasoning_content) {
    node.thinking ??= now
    node.reasoning += d.reasoning_content
  }
  if (d.content || d.tool_calls) {
    if (node.thinking) node.thought ??= now
    node.content += d.content ?? ''
  }
  if (d.content || d.tool_calls || d.reasoning_content) {
    node.first ??= now
    node.pieces++
    delete node.progress
  }
  for (const t of d.tool_calls ?? []) {
    const call = (node.tool_calls[t.index] ??= { id: t.id ?? '', name: '', arguments: '' })
    if (t.id) call.id = t.id
    call.name += t.function?.name ?? ''
    call.arguments += t.function?.arguments ?? ''
  }
  if (choice.finish_reason) node.finish = choice.finish_reason
}

export const chats = new Chats()
