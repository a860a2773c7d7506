// The map: a cell for each expert of each layer. Colour is the tier, brightness the heat, and a cell that a token chose
// flashes. Cells are pixels of a small picture which is enlarged, so that a frame costs about the same for any size.

const gutter = 34 // for the layers' numbers
const fade = 600 // ms of a flash
const heats = 32, flashes = 16 // steps of the colours
const frame = 40 // ms between two pictures, when something fades

const themes = {
  // From cold to hot by place, then the flash and its share: the place must still be seen where an expert is chosen all the time.
  dark: { places: [['#262422', '#6d675f'], ['#6b4a12', '#b07c22'], ['#b07c22', '#f0b545'], ['#12524a', '#5fe0c8'], ['#46307a', '#b49bff']], flash: '#ffffff', glare: 0.6, ground: '#1b1a18', text: '#a49d92', cursor: '#ffffff' },
  light: { places: [['#ebe7e0', '#a39c90'], ['#f2d9a4', '#d39a35'], ['#e8b04b', '#b06f00'], ['#bfe2dc', '#0f7f70'], ['#d9cdf7', '#6a45c9']], flash: '#16130f', glare: 0.4, ground: '#ffffff', text: '#6b655c', cursor: '#16130f' },
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))
const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t)

// table holds a pixel for each place, step of heat and step of flash.
function table(theme) {
  const t = new Uint32Array(theme.places.length * heats * flashes)
  const flash = rgb(theme.flash)
  theme.places.forEach(([cold, hot], p) => {
    for (let h = 0; h < heats; h++) {
      const base = mix(rgb(cold), rgb(hot), h / (heats - 1))
      for (let f = 0; f < flashes; f++) {
        const c = mix(base, flash, theme.glare * f / (flashes - 1))
        t[(p * heats + h) * flashes + f] = (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0
      }
    }
  })
  return t
}

// layout says where cells lie, in CSS pixels, on a map of the given width. Cells that are large enough to have lines between
// them begin at whole pixels of a screen that has scale of them to a CSS pixel.
export function layout(counts, width, scale = 1) {
  const room = Math.max(60, width - gutter)
  const most = Math.max(1, ...counts)
  const least = most * counts.length > 4000 ? 2.5 : 4
  const cols = Math.ceil(most / Math.ceil(most / Math.floor(room / least))) // a layer's lines are about as long as one another
  const share = room / cols
  const whole = (v) => Math.floor(v * scale) / scale
  const w = Math.min(whole(34), share >= 4 ? whole(share) : share)
  const h = Math.min(w, whole(20))
  const gap = whole(h > 8 ? 3 : 2)
  const left = Math.round(gutter * scale) / scale
  const layers = []
  let first = 0, row = 0, y = 0
  counts.forEach((n, layer) => {
    if (n > 0) {
      const lines = Math.ceil(n / cols)
      layers.push({ layer, first, n, row, lines, y })
      row += lines
      y += lines * h + gap
    }
    first += n
  })
  return { cols, w, h, left, layers, rows: row, height: Math.ceil(y), total: first }
}

export class ExpertMap {
  times = new Float32Array(512) // ms of the latest pictures
  drawn = 0
  cursor = -1
  #theme = themes.dark
  #colours = table(themes.dark)
  #place = null
  #flash = new Float32Array(0) // when a cell was last chosen
  #live = [] // cells that fade
  #pixel = new Int32Array(0) // of each expert in the picture
  #image = null
  #small = document.createElement('canvas')
  #pen = null
  #due = false
  #whole = true
  #last = 0

  // canvas shows the cells, over what does not change: numbers of layers, lines between cells, the cursor.
  constructor(canvas, over, feed) {
    this.canvas = canvas
    this.over = over
    this.feed = feed
    this.ctx = canvas.getContext('2d', { alpha: false })
    this.still = matchMedia('(prefers-reduced-motion: reduce)')
    this.width = 0
    canvas.map = this
  }

  setTheme(dark) {
    this.#theme = dark ? themes.dark : themes.light
    this.#colours = table(this.#theme)
    this.#whole = true
    this.#draw0()
  }

  // resize lays the cells out for a width in CSS pixels.
  resize(width) {
    this.width = width
    const scale = this.scale = Math.min(2, devicePixelRatio || 1)
    const p = this.#place = layout(this.feed.counts, width, scale)
    for (const c of [this.canvas, this.over]) {
      c.width = Math.max(1, Math.round(width * scale))
      c.height = Math.max(1, Math.round(p.height * scale))
      c.style.height = p.height + 'px'
    }
    this.#small.width = Math.max(1, p.cols)
    this.#small.height = Math.max(1, p.rows)
    this.#pen = this.#small.getContext('2d', { alpha: false })
    this.#image = this.#pen.createImageData(this.#small.width, this.#small.height)
    this.#pixel = new Int32Array(p.total)
    for (const l of p.layers) for (let i = 0; i < l.n; i++) this.#pixel[l.first + i] = (l.row + Math.floor(i / p.cols)) * p.cols + i % p.cols
    if (this.#flash.length !== p.total) {
      this.#flash = new Float32Array(p.total).fill(-1e9)
      this.#live = []
    }
    this.#whole = true
    this.#draw0()
  }

  // changed takes what the feed tells.
  changed(kind, routed) {
    if (kind === 'state') this.resize(this.width)
    else if (kind === 'heat') {
      this.#whole = true
      this.#ask()
    } else if (kind === 'delta' && this.#place) {
      const now = performance.now()
      for (const w of routed) {
        const i = w >>> 8
        if (now - this.#flash[i] >= fade) this.#live.push(i)
        this.#flash[i] = now
      }
      this.#whole = true // what moved is anywhere
      this.#ask()
    }
  }

  #ask() {
    if (this.#due) return
    this.#due = true
    requestAnimationFrame((t) => this.#tick(t))
  }

  #tick(t) {
    this.#due = false
    if (t - this.#last < frame && !this.#whole) return this.#ask()
    this.#last = t
    this.draw()
    if (this.#live.length > 0) {
      if (this.still.matches) setTimeout(() => this.#ask(), fade)
      else this.#ask()
    }
  }

  // draw makes the picture of now and notes how long it took.
  draw() {
    const p = this.#place
    if (!p || !this.#image) return
    const start = performance.now()
    const out = new Uint32Array(this.#image.data.buffer)
    const { tier, heat } = this.feed
    const { ctx } = this
    const c = this.#colours, flash = this.#flash, pixel = this.#pixel
    const still = this.still.matches
    const paint = (i) => {
      const age = start - flash[i]
      const f = age >= fade ? 0 : still ? flashes - 1 : Math.ceil((1 - age / fade) * (flashes - 1))
      out[pixel[i]] = c[(Math.min(tier[i] & 15, 4) * heats + (heat[i] >> 3)) * flashes + f]
    }
    if (this.#whole) for (let i = 0; i < p.total; i++) paint(i)
    else for (const i of this.#live) paint(i)
    this.#live = this.#live.filter((i) => start - flash[i] < fade)
    this.#pen.putImageData(this.#image, 0, 0)
    if (this.#whole) {
      ctx.fillStyle = this.#theme.ground
      ctx.fillRect(0, 0, this.canvas.width, this.canvas.height)
    }
    ctx.imageSmoothingEnabled = false
    for (const l of p.layers) {
      const rest = l.n % p.cols
      const full = rest ? l.lines - 1 : l.lines
      if (full > 0) this.#part(l, 0, full, p.cols)
      if (rest) this.#part(l, full, 1, rest)
    }
    this.#whole = false
    this.times[this.drawn++ % this.times.length] = performance.now() - start
  }

  #part(l, line, lines, cols) {
    const p = this.#place, s = this.scale
    this.ctx.drawImage(this.#small, 0, l.row + line, cols, lines, p.left * s, (l.y + line * p.h) * s, cols * p.w * s, lines * p.h * s)
  }

  // draw0 draws what lies over the cells.
  #draw0() {
    const p = this.#place
    if (!p) return
    const ctx = this.over.getContext('2d'), s = this.scale
    ctx.setTransform(s, 0, 0, s, 0, 0)
    ctx.clearRect(0, 0, this.width, p.height)
    ctx.fillStyle = this.#theme.ground
    if (p.w >= 5) {
      const gap = Math.round((p.w > 12 ? 2 : 1) * s) / s
      for (let i = 1; i <= p.cols; i++) ctx.fillRect(p.left + i * p.w - gap, 0, gap, p.height)
      for (const l of p.layers) for (let k = 1; k < l.lines; k++) ctx.fillRect(p.left, l.y + k * p.h - 1, p.cols * p.w, 1)
    }
    ctx.fillStyle = this.#theme.text
    ctx.font = '10px system-ui, sans-serif'
    ctx.textAlign = 'right'
    ctx.textBaseline = 'middle'
    let free = -99
    for (const l of p.layers) {
      const y = Math.max(5, l.y + l.lines * p.h / 2)
      if (y - 5 < free) continue
      ctx.fillText(String(l.layer), p.left - 7, y)
      free = y + 5
    }
    const box = this.box(this.cursor)
    if (box) {
      ctx.strokeStyle = this.#theme.cursor
      ctx.lineWidth = 2
      ctx.strokeRect(box.x - 1, box.y - 1, box.w + 2, box.h + 2)
    }
    this.#ask()
  }

  setCursor(i) {
    if (i === this.cursor) return
    this.cursor = i
    this.#draw0()
  }

  box(i) {
    const p = this.#place
    const l = p && i >= 0 && p.layers.find((l) => i >= l.first && i < l.first + l.n)
    if (!l) return null
    const k = i - l.first
    return { x: p.left + k % p.cols * p.w, y: l.y + Math.floor(k / p.cols) * p.h, w: p.w, h: p.h, layer: l.layer, expert: k }
  }

  // find is the expert under a point, -1 for none.
  find(x, y) {
    const p = this.#place
    const l = p?.layers.findLast((l) => l.y <= y)
    if (!l) return -1
    const col = Math.floor((x - p.left) / p.w), line = Math.floor((y - l.y) / p.h)
    const k = line * p.cols + col
    return col < 0 || col >= p.cols || line >= l.lines || k >= l.n ? -1 : l.first + k
  }

  // step moves the cursor by keys.
  step(key) {
    const p = this.#place
    if (!p || p.layers.length === 0) return
    const at = p.layers.findIndex((l) => this.cursor >= l.first && this.cursor < l.first + l.n)
    if (at < 0) return this.setCursor(p.layers[0].first)
    const l = p.layers[at], k = this.cursor - l.first
    const in_ = (m, k) => m.first + Math.min(k, m.n - 1)
    switch (key) {
      case 'ArrowLeft': return this.setCursor(l.first + Math.max(0, k - 1))
      case 'ArrowRight': return this.setCursor(in_(l, k + 1))
      case 'ArrowUp': return this.setCursor(in_(p.layers[Math.max(0, at - 1)], k))
      case 'ArrowDown': return this.setCursor(in_(p.layers[Math.min(p.layers.length - 1, at + 1)], k))
      case 'Home': return this.setCursor(l.first)
      case 'End': return this.setCursor(l.first + l.n - 1)
    }
  }

  // p95 is the time that all but a twentieth of the latest pictures stayed under, in ms.
  p95() {
    const n = Math.min(this.drawn, this.times.length)
    return n ? Array.from(this.times.subarray(0, n)).sort((a, b) => a - b)[Math.min(n - 1, Math.floor(n * 0.95))] : 0
  }
}
