import { mkdirSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import type { Refusal } from '../../../../src/model/fields.ts'
import type { NodeInfo, SourceEvent } from '../../../../src/model/snapshot.ts'
import { FileSource } from '../../../../src/source/file/file-source.ts'
import { OBJECT_PARTS } from '../../../../src/source/object-cap.ts'
import { type LocatedRefusal, problemText, type SourceProblem } from '../../../../src/source/source.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { eventually, patientMs } from '../../../support/patience.ts'

/** A second where the machine has nothing else to do, which test/faults/acceptance.test.ts holds the daemon to. */
const NOTICE_MS = 10_000

let folder: string
let source: FileSource | undefined
let objects: Map<string, string>
let batches: (readonly SourceEvent[])[]
let problems: SourceProblem[]
let synced: number
let refused: LocatedRefusal[]

beforeEach(() => {
  folder = temporaryFolder()
  objects = new Map()
  batches = []
  problems = []
  synced = 0
  refused = []
})

afterEach(async () => {
  await source?.stop()
  source = undefined
})

async function begin(path = folder, options: object = {}): Promise<void> {
  source = new FileSource({
    path,
    parseObject: parseNamed,
    clock: systemClock,
    ...options,
  })
  await source.start({
    events: async batch => {
      batches.push(batch)
      for (const event of batch) {
        if (event.kind !== 'Node') continue
        if (event.value === undefined) objects.delete(event.key)
        else objects.set(event.key, event.value.zone)
      }
    },
    synced: () => synced++,
    refusals: list => refused.splice(0, refused.length, ...list),
    problem: problem => problems.push(problem),
  })
}

const REFUSED = 'refused'

/** A Node is the smallest object: its zone stands for its content. */
function parseNamed(object: unknown): SourceEvent | Refusal | undefined {
  const { name, zone } = Object(object)
  if (typeof name !== 'string') return undefined
  if (zone === REFUSED) return { object: name, field: 'zone', value: zone, reason: 'not a zone' }
  const value: NodeInfo = {
    name,
    zone: String(zone),
    ips: [],
    podCidrs: [],
    uid: '',
    eligible: true,
    refusals: [],
  }
  return { kind: 'Node', key: name, value }
}

function yaml(content: Readonly<Record<string, string>>): string {
  return Object.entries(content)
    .map(([name, zone]) => `kind: Pod\nname: ${name}\nzone: ${zone}\n`)
    .join('---\n')
}

function write(file: string, content: Readonly<Record<string, string>>): void {
  writeFileSync(join(folder, file), yaml(content))
}

function known(): Record<string, string> {
  return Object.fromEntries([...objects].sort())
}

async function until(condition: () => boolean, what: string, withinMs = NOTICE_MS): Promise<void> {
  const describe = () => `${what}; problems: ${JSON.stringify(problems)}`
  await eventually(condition, { limitMs: withinMs, describe })
}

/** Waits for looks that begin from now on: one that runs may have seen the folder before. */
async function looks(count: number): Promise<void> {
  for (let done = 0; done <= count; done++) {
    const before = source?.status.heardMs
    await until(() => source?.status.heardMs !== before, 'a look')
  }
}

const rest = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))
const reads = (expected: Readonly<Record<string, string>>) =>
  until(() => JSON.stringify(known()) === JSON.stringify(expected), JSON.stringify(expected))
const said = (kind: SourceProblem['kind'], text: RegExp) =>
  problems.filter(
    problem => problem.kind === kind && text.test(`${problem.location}: ${problemText(problem)}`),
  ).length

describe('FileSource', () => {
  it('reads a folder of YAML and JSON once and then says that it is complete', async () => {
    write('a.yaml', { a: '1', b: '2' })
    writeFileSync(join(folder, 'c.json'), '{"kind":"List","items":[{"kind":"Pod","name":"c","zone":3}]}')
    write('.hidden.yaml', { hidden: '1' })
    write('notes.txt', { text: '1' })
    // Files that changed a moment ago are read one by one, as each comes to rest.
    await rest(200)
    await begin()
    await until(() => synced === 1, 'synced')
    expect(known()).toEqual({ a: '1', b: '2', c: '3' })
    expect(batches).toHaveLength(1)
  })

  it.each([
    ['nothing', [], /the folder has no \*\.yaml, \*\.yml or \*\.json file$/],
    ['other files', ['notes.txt', 'sub/'], /or \*\.json file; skipped: notes\.txt, sub\/$/],
    [
      'other kinds',
      ['a.yaml', 'b.json'],
      /no Service, .* for this node; files read: a\.yaml, b\.json; other objects: Pod, Secret$/,
    ],
  ])('is complete at once where there is %s, and names it', async (_, names, text) => {
    for (const name of names) {
      if (name.endsWith('/')) mkdirSync(join(folder, name))
      else writeFileSync(join(folder, name), name === 'a.yaml' ? 'kind: Pod\n---\nkind: Secret\n' : '')
    }
    await begin()
    await until(() => synced === 1, 'synced')
    expect(said('empty', text)).toBe(1)
    expect(problems).toHaveLength(1)
  })

  it.each([
    ['shrinks', { a: '1', d: '1', e: '1' }, () => write('a.yaml', { a: '1' })],
    ['goes', { a: '1', b: '1', d: '1', e: '1' }, () => rmSync(join(folder, 'b.yaml'))],
  ])('reads a file that was too large beside others once one of them %s', async (_, expected, change) => {
    write('a.yaml', { a: '1', b: '1' })
    write('b.yaml', { a: '1' })
    write('c.yaml', { d: '1', e: '1' })
    await rest(200)
    await begin(folder, { partsMax: 4 * OBJECT_PARTS })
    await until(() => said('failed', /c\.yaml: too large for the memory limit/) === 1, 'the failure')
    change()
    await reads(expected)
  })

  it('forgets what it refused of a file that is gone once another file has its objects', async () => {
    write('a.yaml', { a: '1', x: REFUSED })
    await begin()
    await until(() => refused.length === 1, 'the refusal')
    rmSync(join(folder, 'a.yaml'))
    await until(() => said('failed', /a\.yaml: file deleted/) === 1, 'the end of the file')
    write('b.yaml', { a: '1' })
    await until(() => refused.length === 0, 'no refusal')
  })

  it('reports an unknown kind once, however often the file changes', async () => {
    writeFileSync(join(folder, 'a.yaml'), 'kind: Servce\nname: a\nzone: 1\n')
    await begin()
    await reads({ a: '1' })
    const text = 'ignored: Servce is of an unknown kind; did you mean Service?'
    expect(problems).toEqual([{ kind: 'doubtful', location: `${join(folder, 'a.yaml')}:1`, text }])
    for (const zone of ['2', '3']) {
      writeFileSync(join(folder, 'a.yaml'), `# moved\nkind: Servce\nname: a\nzone: ${zone}\n`)
      await reads({ a: zone })
    }
    expect(problems).toHaveLength(1)
  })

  it('reads one file of any name', async () => {
    write('objects', { a: '1' })
    await begin(join(folder, 'objects'))
    await reads({ a: '1' })
    write('objects', { a: '2' })
    await reads({ a: '2' })
  })

  it('emits only what an edit changes', async () => {
    write('a.yaml', { a: '1', b: '2', c: '3' })
    await begin()
    await until(() => synced === 1, 'synced')
    write('a.yaml', { a: '1', b: '9', d: '4' })
    await reads({ a: '1', b: '9', d: '4' })
    expect(batches[1]?.map(event => (event.kind === 'Node' ? event.key : '')).sort()).toEqual(['b', 'c', 'd'])
  })

  const served = (name: string) => join(folder, 'served', name)
  const fill = (path: string, zone: string) => {
    mkdirSync(join(folder, path), { recursive: true })
    write(join(path, 'a.yaml'), { a: zone })
  }

  it.each([
    [
      'a file that is renamed over another',
      () => fill('served', '1'),
      () => {
        write('served/a.yaml.tmp', { a: '2' })
        renameSync(served('a.yaml.tmp'), served('a.yaml'))
      },
    ],
    [
      'the swap of a symbolic link as in a mounted ConfigMap',
      () => {
        fill('served/..v1', '1')
        fill('served/..v2', '2')
        symlinkSync('..v1', served('..data'))
        symlinkSync('..data/a.yaml', served('a.yaml'))
      },
      () => {
        symlinkSync('..v2', served('..tmp'))
        renameSync(served('..tmp'), served('..data'))
      },
    ],
    [
      'a change in the file that a link leads to, in another folder',
      () => {
        fill('real', '1')
        mkdirSync(join(folder, 'served'))
        symlinkSync(join(folder, 'real', 'a.yaml'), served('a.yaml'))
      },
      () => fill('real', '2'),
    ],
    [
      'a folder that is replaced',
      () => fill('served', '1'),
      () => {
        renameSync(join(folder, 'served'), join(folder, 'old'))
        fill('served', '2')
      },
    ],
  ])('notices %s', async (_, prepare, change) => {
    prepare()
    await begin(join(folder, 'served'))
    await reads({ a: '1' })
    change()
    await reads({ a: '2' })
  })

  it('notices an editor that moves the old file away and writes a new one', async () => {
    write('a.yaml', { a: '1' })
    await begin()
    await reads({ a: '1' })
    renameSync(join(folder, 'a.yaml'), join(folder, 'a.yaml~'))
    await rest(30)
    write('a.yaml', { a: '2' })
    await reads({ a: '2' })
    expect(problems).toEqual([])
  })

  it('never shows half of a file that is written in pieces', async () => {
    write('a.yaml', { a: '1', b: '1', c: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    writeFileSync(join(folder, 'a.yaml'), yaml({ a: '2' }))
    await rest(15)
    writeFileSync(join(folder, 'a.yaml'), yaml({ a: '2', b: '2' }))
    await rest(15)
    writeFileSync(join(folder, 'a.yaml'), yaml({ a: '2', b: '2', c: '2' }))
    await reads({ a: '2', b: '2', c: '2' })
    expect(batches).toHaveLength(2)
  })

  it('reads a file that changes all the time, and once more when it rests', async () => {
    write('a.yaml', { a: '00' })
    await begin()
    await until(() => synced === 1, 'synced')
    let zone = 10
    while (zone < 40 || known().a === '00') {
      write('a.yaml', { a: String(++zone) })
      await rest(20)
    }
    await reads({ a: String(zone) })
  })

  it('keeps the last good state of a broken file, says so once with its place, and says when it is read again', async () => {
    write('a.yaml', { a: '1', b: '2' })
    await begin()
    await until(() => synced === 1, 'synced')
    writeFileSync(join(folder, 'a.yaml'), 'name: a\nzone: [1\nname: b\n')
    await until(
      () =>
        said('failed', /a\.yaml:3:1: invalid YAML: .*; the last valid content stays in use \(2 objects\)/) ===
        1,
      'the failure',
    )
    await looks(3)
    expect(problems).toHaveLength(1)
    expect(known()).toEqual({ a: '1', b: '2' })
    write('a.yaml', { a: '3' })
    await reads({ a: '3' })
    expect(said('recovered', /a\.yaml/)).toBe(1)
  })

  it('says another reason anew, and the same one not', async () => {
    write('a.yaml', { a: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    writeFileSync(join(folder, 'a.yaml'), 'x: [1\n')
    await until(() => problems.length === 1, 'first failure')
    writeFileSync(join(folder, 'a.yaml'), 'a: 1\na: 2\n')
    await until(() => problems.length === 2, 'second failure')
    writeFileSync(join(folder, 'a.yaml'), 'a: 1\na: 3\n')
    await looks(3)
    expect(problems).toHaveLength(2)
  })

  it('takes a truncated file for a torn one', async () => {
    write('a.yaml', { a: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    truncateSync(join(folder, 'a.yaml'))
    await until(
      () => said('failed', /empty; the last valid content stays in use \(1 object\)/) === 1,
      'the failure',
    )
    expect(known()).toEqual({ a: '1' })
    writeFileSync(join(folder, 'a.yaml'), '# nothing any more\n')
    await reads({})
  })

  it('keeps the objects of a deleted file, reports that once, and reads the file again when it returns', async () => {
    write('a.yaml', { a: '1' })
    write('b.yaml', { b: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    rmSync(join(folder, 'a.yaml'))
    await until(
      () => said('failed', /a\.yaml: file deleted; the last valid content stays in use/) === 1,
      'the loss',
    )
    expect(known()).toEqual({ a: '1', b: '1' })
    write('a.yaml', { a: '2' })
    await reads({ a: '2', b: '1' })
    expect(said('recovered', /a\.yaml/)).toBe(1)
    expect(problems).toHaveLength(2)
  })

  it('lets a renamed file take over its objects', async () => {
    write('a.yaml', { a: '1', b: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    renameSync(join(folder, 'a.yaml'), join(folder, 'b.yaml'))
    await looks(3)
    write('b.yaml', { a: '2' })
    await reads({ a: '2' })
    expect(said('failed', /gone/)).toBe(0)
  })

  it('keeps everything when the folder vanishes, and says so once', async () => {
    write('a.yaml', { a: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    rmSync(folder, { recursive: true })
    await until(
      () =>
        said('failed', /cannot read the source files \(ENOENT\); the last valid content stays in use/) === 1,
      'the loss',
    )
    await rest(600)
    expect(problems).toHaveLength(1)
    expect(known()).toEqual({ a: '1' })
    mkdirSync(folder)
    write('a.yaml', { a: '2' })
    await reads({ a: '2' })
  })

  it('is not complete while a file was never read', async () => {
    write('a.yaml', { a: '1' })
    writeFileSync(join(folder, 'b.yaml'), 'x: [1\n')
    await begin()
    await until(
      () => said('failed', /b\.yaml.*; kprobe waits until it has read every file once$/) === 1,
      'the failure',
    )
    expect(synced).toBe(0)
    write('b.yaml', { b: '1' })
    await until(() => synced === 1, 'synced')
    expect(known()).toEqual({ a: '1', b: '1' })
    writeFileSync(join(folder, 'c.yaml'), 'x: [1\n')
    await until(
      () => said('failed', /c\.yaml.*; the whole file is ignored$/) === 1,
      'the failure of a later file',
    )
  })

  it('waits for a path that does not exist yet', async () => {
    await begin(join(folder, 'later'))
    await until(() => said('failed', /ENOENT/) === 1, 'the failure')
    mkdirSync(join(folder, 'later'))
    write('later/a.yaml', { a: '1' })
    await reads({ a: '1' })
  })

  it('lets the first file by name win over an object that two describe, and names the loser', async () => {
    write('b.yaml', { a: 'b' })
    await begin()
    await until(() => synced === 1, 'synced')
    write('a.yaml', { a: 'a' })
    await reads({ a: 'a' })
    expect(said('duplicate', /b\.yaml: Node\/a is also in a\.yaml/)).toBe(1)
    write('a.yaml', { other: '1' })
    await reads({ a: 'b', other: '1' })
  })

  it('does not finish a large file when it is stopped', async () => {
    const filler = 'x'.repeat(300)
    const items = Array.from({ length: 60_000 }, (_, i) => ({ kind: 'Pod', name: `n${i}`, filler }))
    writeFileSync(join(folder, 'large.json'), JSON.stringify({ kind: 'List', items }))
    await begin()
    await rest(60)
    const beganMs = performance.now()
    await source?.stop()
    expect(performance.now() - beganMs).toBeLessThan(patientMs(5_000))
    expect([batches, problems, synced]).toEqual([[], [], 0])
  })

  it('stops without another word', async () => {
    write('a.yaml', { a: '1' })
    await begin()
    await until(() => synced === 1, 'synced')
    await source?.stop()
    write('a.yaml', { a: '2' })
    await rest(700)
    expect(known()).toEqual({ a: '1' })
  })
})
