// Parameters of a conversation. What is left empty is the server's to choose.

// numbers are fields that go into the request as they are called here.
export const numbers = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, help: '0 always takes the likeliest token' },
  { name: 'top_k', label: 'Top-k', min: 0, max: 1000, step: 1, help: 'tokens that may be drawn; 0: all' },
  { name: 'top_p', label: 'Top-p', min: 0, max: 1, step: 0.01, help: 'probability that those drawn from have together' },
  { name: 'min_p', label: 'Min-p', min: 0, max: 1, step: 0.01, help: 'least probability, as a share of the likeliest’s' },
  { name: 'repeat_penalty', label: 'Repeat penalty', min: 0.5, max: 2, step: 0.05, help: '1 is none' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, help: '0 is none' },
  { name: 'max_tokens', label: 'Max tokens', min: 1, max: 1 << 20, step: 1, help: 'of an answer' },
  { name: 'seed', label: 'Seed', min: 0, max: 2 ** 32 - 2, step: 1, help: 'the same seed, the same answer' },
]

// requestOf makes request fields of parameters. It throws on text that is not the JSON it should be.
export function requestOf(p) {
  const out = {}
  for (const { name } of numbers) if (p[name] !== undefined && p[name] !== '') out[name] = +p[name]
  const stop = (p.stop ?? '').split('\n').filter(Boolean)
  if (stop.length) out.stop = stop
  if (p.thinking) out.chat_template_kwargs = { enable_thinking: p.thinking === 'on' }
  if (p.thinking !== 'off' && p.thinking_budget) out.reasoning_budget_tokens = +p.thinking_budget
  if (p.format === 'json') out.response_format = { type: 'json_object' }
  if (p.format === 'schema') out.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: parsed('JSON schema', p.schema, 'object') } }
  if (p.tools?.trim()) {
    out.tools = parsed('Tools', p.tools, 'array').map((t) => t?.type ? t : { type: 'function', function: t })
    if (p.tool_choice) out.tool_choice = p.tool_choice
  }
  return out
}

export function parsed(name, text, want) {
  let v
  try {
    v = JSON.parse(text ?? '')
  } catch (e) {
    throw new Error(`${name}: no JSON: ${e.message}`)
  }
  if (want === 'array' ? !Array.isArray(v) : !v || typeof v !== 'object' || Array.isArray(v)) throw new Error(`${name}: not a JSON ${want}`)
  return v
}
