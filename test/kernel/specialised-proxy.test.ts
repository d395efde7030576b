import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const DOCUMENT = readFileSync(`${ROOT}docs/specialised-proxy.md`, 'utf8')
const LIMIT_MS = 120_000

interface Block {
  readonly kind: string
  readonly text: string
}

const blocks: readonly Block[] = [...DOCUMENT.matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)].map(
  ([, kind = '', text = '']) => ({ kind, text }),
)

/** Commands, and what the document says that they print. */
const steps = blocks.flatMap(({ kind, text }, index) => {
  const next = blocks[index + 1]
  return kind === 'sh' ? [{ command: text, said: next?.kind === 'console' ? next.text : '' }] : []
})

let outputs: readonly string[]
let shell: ChildProcess

/** One shell runs all of them, as a reader's would, in namespaces that end with it. */
beforeAll(async () => {
  const border = (index: number) => `printf '\\n@@@ %s\\n' ${index}\n`
  const script = steps.map(({ command }, index) => `${border(index)}${command}`).join('')
  shell = spawn('unshare', ['-nm', 'sh', '-eu'], {
    cwd: ROOT,
    stdio: ['pipe', 'pipe', 'pipe'],
    detached: true,
  })
  let out = ''
  let err = ''
  shell.stdout?.on('data', chunk => {
    out += chunk
  })
  shell.stderr?.on('data', chunk => {
    err += chunk
  })
  shell.stdin?.end(`${script}${border(steps.length)}`)
  const timer = setTimeout(end, LIMIT_MS)
  const [code] = await once(shell, 'close')
  clearTimeout(timer)
  if (code !== 0) throw new Error(`the commands end with ${code}:\n${out}\n${err}`)
  outputs = out.split(/\n@@@ \d+\n/).slice(1)
})

afterAll(() => end())

/** The shell and whatever it has left running. */
function end(): void {
  try {
    if (shell.pid !== undefined) process.kill(-shell.pid, 'SIGKILL')
  } catch (error) {
    // Nothing is left.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
  }
}

describe('docs/specialised-proxy.md', () => {
  test('holds commands that were run, what they print, and nothing else that looks like one', () => {
    expect(steps.length).toBeGreaterThan(10)
    const kinds = new Set(blocks.map(({ kind }) => kind))
    expect([...kinds].sort()).toEqual(['console', 'sh', 'sh cluster', 'sh setup', 'yaml'])
    expect(outputs).toHaveLength(steps.length + 1)
  })

  test.each(steps.map((step, index) => ({ ...step, index })).filter(({ said }) => said !== ''))(
    'prints what it says: $command',
    ({ said, index }) => {
      const lines = outputs[index]?.split('\n').map(line => line.trim()) ?? []
      for (const line of said.trimEnd().split('\n')) {
        const parts = line.split('...').map(part => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
        const pattern = new RegExp(`^${parts.join('.*')}$`)
        expect(
          lines.some(each => pattern.test(each)),
          `${line}\n among\n${lines.join('\n')}`,
        ).toBe(true)
      }
    },
  )

  test('shows the manifest as it is', () => {
    const manifest = readFileSync(`${ROOT}deploy/examples/all-ip/service.yaml`, 'utf8')
    const [yaml] = blocks.filter(({ kind }) => kind === 'yaml')
    expect(manifest.replace(/^#.*\n/gm, '')).toBe(yaml?.text)
  })

  test('names files that exist', () => {
    const links = [...DOCUMENT.matchAll(/\]\(([^)#:]+)\)/g)].map(([, path]) => path ?? '')
    expect(links.length).toBeGreaterThan(4)
    for (const path of links) expect(readFileSync(`${ROOT}docs/${path}`).length).toBeGreaterThan(0)
  })
})
