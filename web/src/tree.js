// A conversation is a tree of messages: editing and regenerating add a sibling and lose nothing. What is shown is the path
// from the root to `head`.

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, '0')).join('')
}

export function newConversation(params) {
  return { id: 'c' + newId(), title: '', created: Date.now(), updated: Date.now(), head: '', nodes: {}, params: { ...params } }
}

export function add(conv, parent, message) {
  const node = { id: 'm' + newId(), parent, created: Date.now(), ...message }
  conv.nodes[node.id] = node
  conv.head = node.id
  conv.updated = Date.now()
  return node
}

export function path(conv, end = conv.head) {
  const out = []
  for (let n = conv.nodes[end]; n; n = conv.nodes[n.parent]) out.push(n)
  return out.reverse()
}

export function siblings(conv, node) {
  return Object.values(conv.nodes).filter((n) => n.parent === node.parent && n.role === node.role)
}

// show makes the path lead through node, to its latest end.
export function show(conv, node) {
  for (;;) {
    const next = Object.values(conv.nodes).filter((n) => n.parent === node.id).at(-1)
    if (!next) break
    node = next
  }
  conv.head = node.id
}

// messages are what the server gets: the path to end, without answers that hold nothing.
export function messages(conv, end) {
  const out = []
  if (conv.params.system?.trim()) out.push({ role: 'system', content: conv.params.system })
  for (const n of path(conv, end)) {
    if (n.role === 'user') out.push({ role: 'user', content: n.content })
    else if (n.role === 'tool') out.push({ role: 'tool', tool_call_id: n.tool_call_id, content: n.content })
    else if (n.content || n.tool_calls?.length) {
      const m = { role: 'assistant', content: n.content }
      if (n.reasoning) m.reasoning_content = n.reasoning
      if (n.tool_calls?.length) m.tool_calls = n.tool_calls.map((t) => ({ id: t.id, type: 'function', function: { name: t.name, arguments: t.arguments } }))
      out.push(m)
    }
  }
  return out
}

export function titleOf(conv) {
  if (conv.title) return conv.title
  const first = Object.values(conv.nodes).find((n) => n.role === 'user')
  const line = first?.content.trim().split('\n')[0] ?? ''
  return line.length > 60 ? line.slice(0, 59) + '…' : line || 'New conversation'
}
