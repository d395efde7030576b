// Writes docs/fault-matrix.md from the titles of the tests; --print writes it to standard output instead.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { GROUPS, NOT_HERE, NOTES } from './matrix-rows.mjs'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const TITLE = /(['"`])((?:(?!\1)[^\n])*\bF\d{2,3}\b(?:(?!\1)[^\n])*)\1/g

/** Tests, and scenarios, whose names are titles. Tests of the tests' own tools, which bring the faults about, are none. */
function isOfKprobe(name) {
  const isScenario = name.startsWith('scenarios/') && name.endsWith('.yaml')
  return isScenario || (name.endsWith('.test.ts') && !name.startsWith('unit/support/'))
}

/** Test files by the ids in their titles. */
function filesById() {
  const files = new Map()
  const names = readdirSync(join(TOP, 'test'), { recursive: true }).map(String)
  for (const name of names.filter(isOfKprobe).sort()) {
    const text = readFileSync(join(TOP, 'test', name), 'utf8')
    const titles = [...text.matchAll(TITLE)].map(([, , title]) => title).join()
    for (const id of new Set(titles.match(/\bF\d{2,3}\b/g))) files.set(id, [...(files.get(id) ?? []), name])
  }
  return files
}

function row(id, fault, files) {
  const why = NOT_HERE[id]
  if (files.length === 0 && why === undefined) throw new Error(`${id} has neither a test nor a reason`)
  if (files.length > 0 && why !== undefined) throw new Error(`${id} has both a test and a reason for none`)
  const note = NOTES[id] === undefined ? '' : `; ${NOTES[id]}`
  return `| ${id} | ${fault} | ${files.join('<br>')} | ${why === undefined ? `yes${note}` : `no: ${why}`} |`
}

function matrix() {
  const files = filesById()
  const all = Object.values(GROUPS).flatMap(rows => Object.keys(rows))
  const executed = all.filter(id => files.has(id)).length
  const sections = Object.entries(GROUPS).map(([name, rows]) => {
    const lines = Object.entries(rows).map(([id, fault]) => row(id, fault, files.get(id) ?? []))
    return [
      `## ${name}`,
      '',
      '| Id | Fault | Tests, below `test/` | Executed here |',
      '| --- | --- | --- | --- |',
      ...lines,
      '',
    ].join('\n')
  })
  const head = [
    '# Faults that were tried',
    '',
    'Every fault that kprobe is meant to survive, and the tests whose titles name it. Written by `node test/faults/matrix.mjs`;',
    'a unit test compares. What is not executed is not claimed.',
    '',
    `${executed} of ${all.length} are executed by \`.ci/run\`, and by \`npm test\` but for \`*.long.test.ts\` below \`faults\`, \`kernel\` and \`reference\`.`,
    '',
  ]
  return `${head.join('\n')}\n${sections.join('\n')}`
}

if (process.argv.includes('--print')) process.stdout.write(matrix())
else writeFileSync(join(TOP, 'docs/fault-matrix.md'), matrix())
