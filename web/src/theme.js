// Light or dark: as the system says, or as chosen here.
import { useEffect, useReducer } from 'preact/hooks'

const slot = 'terrace-theme'
const system = matchMedia('(prefers-color-scheme: dark)')
const watching = new Set()

export const theme = () => localStorage.getItem(slot) ?? 'auto'
const isDark = () => theme() === 'dark' || theme() === 'auto' && system.matches

function apply() {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light'
  watching.forEach((f) => f())
}

export function setTheme(t) {
  if (t === 'auto') localStorage.removeItem(slot)
  else localStorage.setItem(slot, t)
  apply()
}

system.addEventListener('change', apply)
apply()

export function useDark() {
  const [, again] = useReducer((n) => n + 1, 0)
  useEffect(() => { watching.add(again); return () => watching.delete(again) }, [])
  return isDark()
}
