import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))

let made: string
let said: string

beforeAll(() => {
  made = mkdtempSync(join(tmpdir(), 'kprobe-test-'))
  said = execFileSync(process.execPath, [`${ROOT}deploy/reference.mjs`, made], { encoding: 'utf8' })
})

afterAll(() => rmSync(made, { recursive: true, force: true }))

describe('the reference of the library', () => {
  test('is what the sources say: npm run reference writes it', () => {
    const committed = `${ROOT}docs/api`
    expect(readdirSync(committed).sort()).toEqual(['index.md', 'netlink.md', 'nft.md'])
    for (const name of readdirSync(made))
      expect(readFileSync(join(committed, name), 'utf8'), name).toBe(readFileSync(join(made, name), 'utf8'))
  })

  test('has a word on every function and class, and on every constant that is no number of the kernel', () => {
    for (const name of readdirSync(made)) {
      const bare = [
        ...readFileSync(join(made, name), 'utf8').matchAll(/^### (\w+)\n\n```ts\n(function|class)/gm),
      ]
      expect(bare.map(([, each]) => each)).toEqual([])
      const numbers = /\n### Numbers of the kernel\n\n```ts\n([\s\S]*)\n```\n$/.exec(
        readFileSync(join(made, name), 'utf8'),
      )
      for (const line of numbers?.[1]?.split('\n') ?? []) expect(line).toMatch(/^const [A-Z0-9_]+ = -?\d+;$/)
    }
  })

  test('every type that it mentions can be imported, but what is passed on unread', () => {
    expect(said).toBe('used and not exported: CappedServices Claims Column NodeContext\n')
  })
})
