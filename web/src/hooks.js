import { useEffect, useReducer } from 'preact/hooks'

// useStore draws a component again when a store tells.
export function useStore(store) {
  const [, again] = useReducer((n) => n + 1, 0)
  useEffect(() => store.subscribe(again), [store])
}

// useEvery calls f now and then every ms, while the page is seen. f gets a signal that ends with the component.
export function useEvery(ms, f, deps) {
  useEffect(() => {
    const end = new AbortController()
    let timer = 0
    const round = async () => {
      if (!document.hidden) await f(end.signal)
      if (!end.signal.aborted) timer = setTimeout(round, ms)
    }
    round()
    return () => { end.abort(); clearTimeout(timer) }
  }, deps)
}
