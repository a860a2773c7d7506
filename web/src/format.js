// Numbers as people read them. Sizes are decimal (GB), memory of machines is binary (GiB), as in `terrace plan`.

export function bytes(n) {
  if (n == null) return '–'
  if (n >= 1e12) return trim(n / 1e12, 2) + ' TB'
  if (n >= 1e9) return trim(n / 1e9, 2) + ' GB'
  if (n >= 1e6) return trim(n / 1e6, n >= 1e7 ? 0 : 1) + ' MB'
  if (n >= 1e3) return trim(n / 1e3, 0) + ' kB'
  return n + ' B'
}

export function gib(n) {
  if (!n) return '–'
  return n < 2 ** 30 ? trim(n / 2 ** 20, 0) + ' MiB' : trim(n / 2 ** 30, 1) + ' GiB'
}

export function percent(share, digits = 0) {
  return share == null ? '–' : (100 * share).toFixed(digits) + ' %'
}

export function speed(v) {
  if (v == null || !isFinite(v)) return '–'
  return v >= 100 ? count(Math.round(v)) : v >= 10 ? v.toFixed(1) : v.toFixed(2)
}

export function count(n) {
  return n == null ? '–' : n.toLocaleString('en').replaceAll(',', '\u202f')
}

export function seconds(ms) {
  return ms < 1000 ? Math.round(ms) + ' ms' : ms < 60000 ? (ms / 1000).toFixed(1) + ' s' : Math.round(ms / 60000) + ' min'
}

function trim(v, digits) {
  return String(+v.toFixed(digits))
}
