// The panel with a conversation's parameters.
import { numbers, parsed } from './params.js'

const example = '[{"name": "weather", "description": "Weather of a place",\n  "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}]'

function check(name, text, want) {
  if (!text?.trim()) return ''
  try {
    parsed(name, text, want)
    return ''
  } catch (e) {
    return e.message
  }
}

export function Panel({ conv, props, onChange, onClose }) {
  const p = conv.params
  const defaults = props?.default_generation_settings?.params ?? {}
  const set = (name) => (e) => {
    const next = { ...p, [name]: e.target.value }
    if (e.target.value === '') delete next[name]
    onChange(next)
  }
  const schemaWrong = p.format === 'schema' && (check('JSON schema', p.schema, 'object') || (!p.schema?.trim() && 'JSON schema: none is given'))
  const toolsWrong = check('Tools', p.tools, 'array')
  const thinks = props?.chat_template_caps?.supports_thinking
  const callsTools = props?.chat_template_caps?.supports_tools
  return (
    <aside class="panel" aria-label="Parameters">
      <header><h2>Parameters</h2><button type="button" class="quiet" onClick={onClose} aria-label="Close the parameters">✕</button></header>
      <p class="hint">For this conversation. An empty field leaves it to the server.</p>
      <label class="field">System message
        <textarea rows={3} value={p.system ?? ''} onInput={set('system')} />
      </label>
      <div class="pairs">
        {numbers.map((n) => (
          <label class="field" key={n.name} title={n.help}>{n.label}
            <input type="number" name={n.name} min={n.min} max={n.max} step={n.step} value={p[n.name] ?? ''} onInput={set(n.name)}
              placeholder={n.name === 'max_tokens' || n.name === 'seed' ? (n.name === 'seed' ? 'random' : 'no limit') : defaults[n.name] === undefined ? '' : String(+(+defaults[n.name]).toFixed(3))} />
          </label>
        ))}
      </div>
      <label class="field">Stop at
        <textarea rows={1} value={p.stop ?? ''} onInput={set('stop')} placeholder="one text a line" />
      </label>
      <div class="pairs">
        <label class="field">Thinking
          <select value={p.thinking ?? ''} onChange={set('thinking')} disabled={!thinks}>
            <option value="">{thinks ? 'automatic' : 'unsupported'}</option><option value="on">on</option><option value="off">off</option>
          </select>
        </label>
        <label class="field">Thinking budget
          <input type="number" name="thinking_budget" min={1} step={1} value={p.thinking_budget ?? ''} onInput={set('thinking_budget')} placeholder="no limit" disabled={!thinks} />
        </label>
        <label class="field">Answer format
          <select name="format" value={p.format ?? ''} onChange={set('format')}>
            <option value="">text</option><option value="json">any JSON object</option><option value="schema">JSON by a schema</option>
          </select>
        </label>
        <label class="field">Tool use
          <select name="tool_choice" value={p.tool_choice ?? ''} onChange={set('tool_choice')} disabled={!callsTools}>
            <option value="">{callsTools ? 'automatic' : 'unsupported'}</option><option value="required">required</option><option value="none">none</option>
          </select>
        </label>
      </div>
      {p.format === 'schema' && (
        <label class="field">JSON schema
          <textarea rows={5} class="mono" name="schema" spellcheck={false} value={p.schema ?? ''} onInput={set('schema')} aria-invalid={!!schemaWrong} />
          {schemaWrong && <span class="wrong" role="alert">{schemaWrong}</span>}
        </label>
      )}
      <label class="field">Tools <span class="hint">JSON; you give their results by hand</span>
        <textarea rows={4} class="mono" name="tools" spellcheck={false} value={p.tools ?? ''} onInput={set('tools')} placeholder={example} aria-invalid={!!toolsWrong} disabled={!callsTools} />
        {toolsWrong && <span class="wrong" role="alert">{toolsWrong}</span>}
      </label>
      <button type="button" onClick={() => onChange({})}>Reset all</button>
    </aside>
  )
}
