import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../../src/base/clock.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { type FileObjects, readObjects } from '../../../../src/source/file/read-objects.ts'

let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-read-'))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

function read(name: string, text: string): Promise<FileObjects> {
  const path = join(folder, name)
  writeFileSync(path, text)
  return readObjects(path, { parseObject, clock: systemClock })
}

function service(name: string, more: object = {}): Record<string, unknown> {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'ns' },
    spec: { clusterIP: '10.96.0.1', clusterIPs: ['10.96.0.1'], ports: [{ port: 80, protocol: 'TCP' }] },
    ...more,
  }
}

const idsOf = ({ objects }: FileObjects) => [...objects.keys()].sort()

describe('readObjects', () => {
  it('reads Lists in JSON and YAML alike', async () => {
    const list = { apiVersion: 'v1', kind: 'List', items: [service('a'), service('b')] }
    const json = await read('a.json', JSON.stringify(list))
    const yaml = await read('a.yaml', `---\n${JSON.stringify(list)}\n---\n${JSON.stringify(service('c'))}\n`)
    expect(idsOf(json)).toEqual(['Service/ns/a', 'Service/ns/b'])
    expect(idsOf(yaml)).toEqual(['Service/ns/a', 'Service/ns/b', 'Service/ns/c'])
    expect(yaml.objects.get('Service/ns/a')).toEqual(json.objects.get('Service/ns/a'))
  })

  it.each(['first', 'last'])('fills in the kind of a typed list that has it %s', async place => {
    const { apiVersion, kind, ...bare } = service('a')
    const head = { apiVersion, kind: `${kind}List` }
    const list = place === 'first' ? { ...head, items: [bare] } : { items: [bare], ...head }
    expect(idsOf(await read('typed.json', JSON.stringify(list)))).toEqual(['Service/ns/a'])
    expect(idsOf(await read('typed.yaml', JSON.stringify(list)))).toEqual(['Service/ns/a'])
  })

  it('passes over kinds that mean nothing here', async () => {
    expect(idsOf(await read('b.yaml', 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n'))).toEqual([])
  })

  it('names unknown fields and misspelled kinds with the line of their object, in YAML and JSON', async () => {
    const object = service('b', { spec: { ports: [{ port: 80, protocl: 'UDP' }] } })
    const text = 'Service ns/b: unknown field spec.ports[0].protocl ignored; did you mean protocol?'
    const yaml = `# two objects\n---\nkind: Servce\nmetadata: {name: a}\n---\n${JSON.stringify(object)}\n`
    expect((await read('unknown.yaml', yaml)).warnings).toEqual([
      { kind: 'doubtful', line: 2, text: 'ignored: Servce a is of an unknown kind; did you mean Service?' },
      { kind: 'doubtful', line: 5, text },
    ])
    const { apiVersion, kind, ...bare } = object
    for (const list of [
      { kind: 'List', items: [object] },
      { items: [bare], kind: `${kind}List` },
    ]) {
      const json = JSON.stringify({ apiVersion, ...list }, undefined, 1)
      const line = json.split('\n').indexOf('  {') + 1
      expect((await read('unknown.json', json)).warnings).toEqual([{ kind: 'doubtful', line, text }])
    }
  })

  it('lists twenty warnings, and says that there are more', async () => {
    const fields = Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`field${i}`, 1]))
    const { warnings } = await read('many.json', JSON.stringify(service('a', fields)))
    expect(warnings).toHaveLength(21)
    expect(warnings.at(-1)?.text).toBe('there are further warnings about this file from this line on')
  })

  it('gathers refusals beside what is fine', async () => {
    const text = JSON.stringify({ kind: 'List', items: [service('a'), service('UPPER'), service('b')] })
    const content = await read('c.json', text)
    expect(idsOf(content)).toEqual(['Service/ns/a', 'Service/ns/b'])
    expect(content.refusals).toHaveLength(1)
  })

  it('takes the first of two objects of one name, and says so', async () => {
    const content = await read('d.json', JSON.stringify(service('a')) + JSON.stringify(service('a')))
    expect(idsOf(content)).toEqual(['Service/ns/a'])
    const text = 'Service/ns/a is in this file more than once; the first one counts'
    expect(content.warnings).toEqual([{ kind: 'duplicate', line: 1, text }])
  })

  it.each([
    ['e.yaml', 'a: 1\nb: [\n', /^:\d+:\d+$/, 'invalid YAML: '],
    ['e.json', '{"a":1,\n"b"}', /^:\d+$/, 'invalid JSON: '],
    ['e.yaml', 'just text\n', /^$/, ''],
    ['e.yaml', 'kind: List\nitems: {a: 1}\n', /^$/, ''],
  ])('refuses %s with %j and names the place', async (name, text, position, what) => {
    await expect(read(name, text)).rejects.toMatchObject({
      name: 'FileError',
      message: expect.stringContaining(what),
      position: expect.stringMatching(position),
    })
  })

  it('names the system call that failed', async () => {
    const options = { parseObject, clock: systemClock }
    await expect(readObjects(join(folder, 'none.yaml'), options)).rejects.toThrow('open: ENOENT')
    await expect(readObjects(folder, options)).rejects.toThrow('read: EISDIR')
  })

  it('F141: reads no more of a file than of any other because it hides its size', async () => {
    // A regular file of procfs that says 0 and has gigabytes.
    const options = { parseObject, clock: systemClock }
    await expect(readObjects('/proc/self/pagemap', options)).rejects.toThrow(/more than 67108864 bytes/)
  })

  it.each(['pipe.yaml', 'pipe.json'])('F141: does not wait for the writer of %s', async name => {
    const path = join(folder, name)
    execFileSync('mkfifo', [path])
    const options = { parseObject, clock: systemClock }
    await expect(readObjects(path, options)).rejects.toThrow('not a regular file')
  })

  it('F141: lets the event loop breathe while it reads empty documents', async () => {
    let breaths = 0
    let nowMs = 0
    const clock: Clock = {
      ...systemClock,
      nowMs: () => nowMs++,
      breathe: () => {
        breaths++
        return systemClock.breathe()
      },
    }
    const path = join(folder, 'empty.yaml')
    writeFileSync(path, '---\n'.repeat(2_000))
    expect(idsOf(await readObjects(path, { parseObject, clock }))).toEqual([])
    expect(breaths).toBeGreaterThan(100)
  })

  it('F141: has a bound on the number of documents', async () => {
    await expect(read('documents.yaml', '---\n'.repeat(262_145))).rejects.toMatchObject({
      message: expect.stringContaining('more than 262144 documents'),
      position: ':262145:1',
    })
  })

  it.each([
    ['List', {}],
    ['ServiceList', { kind: undefined, apiVersion: undefined }],
  ])('lets the event loop breathe while it reads a large %s', async (kind, bare) => {
    const more = { status: { filler: 'x'.repeat(500) }, ...bare }
    const items = Array.from({ length: 20_000 }, (_, i) => service(`s${i}`, more))
    const path = join(folder, 'large.json')
    writeFileSync(path, JSON.stringify({ apiVersion: 'v1', kind, items }))
    // Not milliseconds, which are another matter on a machine that is busy with other things: objects in one go.
    let [most, sinceBreath, nowMs] = [0, 0, 0]
    const clock: Clock = {
      ...systemClock,
      nowMs: () => {
        nowMs += 0.1
        return nowMs
      },
      breathe: () => {
        most = Math.max(most, sinceBreath)
        sinceBreath = 0
        return systemClock.breathe()
      },
    }
    const counting: typeof parseObject = object => {
      sinceBreath++
      return parseObject(object)
    }
    const { objects } = await readObjects(path, { parseObject: counting, clock })
    expect(objects.size).toBe(20_000)
    expect(Math.max(most, sinceBreath)).toBeLessThan(4_000)
  })
})
