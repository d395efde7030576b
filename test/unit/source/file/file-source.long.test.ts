import { mkdirSync, renameSync, rmSync, symlinkSync, truncateSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { OBJECT_PARTS } from '../../../../src/source/object-cap.ts'
import { eventually, patientMs } from '../../../support/patience.ts'
import { type Content, FollowedFiles, pause, REFUSED } from './followed-files.ts'

/** A second where the machine has nothing else to do, which test/faults/acceptance.test.ts holds the daemon to. */
const NOTICE_MS = 10_000

let files: FollowedFiles

beforeEach(() => {
  files = new FollowedFiles()
})

afterEach(() => files.source?.stop())

function until(condition: () => boolean, what: string): Promise<unknown> {
  const describe = () => `${what}; problems: ${JSON.stringify(files.problems)}`
  return eventually(condition, { limitMs: NOTICE_MS, describe })
}

const synced = () => until(() => files.synced === 1, 'synced')

/** Writes files, and begins to follow them until they were all read. */
async function serving(contents: Readonly<Record<string, Content>>): Promise<void> {
  for (const [file, content] of Object.entries(contents)) files.write(file, content)
  await files.begin()
  await synced()
}

function known(): Content {
  return Object.fromEntries([...files.objects].sort())
}

/** Waits for looks that begin from now on: one that runs may have seen the folder before. */
async function looks(count: number): Promise<void> {
  for (let done = 0; done <= count; done++) {
    const before = files.source?.status.heardMs
    await until(() => files.source?.status.heardMs !== before, 'a look')
  }
}

const reads = (expected: Content) =>
  until(() => JSON.stringify(known()) === JSON.stringify(expected), JSON.stringify(expected))
const fails = (text: RegExp) => until(() => files.said('failed', text) === 1, String(text))

describe('FileSource', () => {
  it('reads a folder of YAML and JSON once and then says that it is complete', async () => {
    files.write('a.yaml', { a: '1', b: '2' })
    files.write('c.json', '{"kind":"List","items":[{"kind":"Pod","name":"c","zone":3}]}')
    files.write('.hidden.yaml', { hidden: '1' })
    files.write('notes.txt', { text: '1' })
    // Files that changed a moment ago are read one by one, as each comes to rest.
    await pause(200)
    await files.begin()
    await synced()
    expect(known()).toEqual({ a: '1', b: '2', c: '3' })
    expect(files.batches).toHaveLength(1)
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
      if (name.endsWith('/')) mkdirSync(files.path(name))
      else files.write(name, name === 'a.yaml' ? 'kind: Pod\n---\nkind: Secret\n' : '')
    }
    await files.begin()
    await synced()
    expect(files.said('empty', text)).toBe(1)
    expect(files.problems).toHaveLength(1)
  })

  it.each([
    ['shrinks', { a: '1', d: '1', e: '1' }, () => files.write('a.yaml', { a: '1' })],
    ['goes', { a: '1', b: '1', d: '1', e: '1' }, () => rmSync(files.path('b.yaml'))],
  ])('reads a file that was too large beside others once one of them %s', async (_, expected, change) => {
    files.write('a.yaml', { a: '1', b: '1' })
    files.write('b.yaml', { a: '1' })
    files.write('c.yaml', { d: '1', e: '1' })
    await pause(200)
    await files.begin({ partsMax: 4 * OBJECT_PARTS })
    await fails(/c\.yaml: too large for the memory limit/)
    change()
    await reads(expected)
  })

  it('forgets what it refused of a file that is gone once another file has its objects', async () => {
    files.write('a.yaml', { a: '1', x: REFUSED })
    await files.begin()
    await until(() => files.refused.length === 1, 'the refusal')
    rmSync(files.path('a.yaml'))
    await fails(/a\.yaml: file deleted/)
    files.write('b.yaml', { a: '1' })
    await until(() => files.refused.length === 0, 'no refusal')
  })

  it('reports an unknown kind once, however often the file changes', async () => {
    files.write('a.yaml', 'kind: Servce\nname: a\nzone: 1\n')
    await files.begin()
    await reads({ a: '1' })
    const text = 'ignored: Servce is of an unknown kind; did you mean Service?'
    expect(files.problems).toEqual([{ kind: 'doubtful', location: `${files.path('a.yaml')}:1`, text }])
    for (const zone of ['2', '3']) {
      files.write('a.yaml', `# moved\nkind: Servce\nname: a\nzone: ${zone}\n`)
      await reads({ a: zone })
    }
    expect(files.problems).toHaveLength(1)
  })

  it('reads one file of any name', async () => {
    files.write('objects', { a: '1' })
    await files.begin({ path: files.path('objects') })
    await reads({ a: '1' })
    files.write('objects', { a: '2' })
    await reads({ a: '2' })
  })

  it('emits only what an edit changes', async () => {
    await serving({ 'a.yaml': { a: '1', b: '2', c: '3' } })
    files.write('a.yaml', { a: '1', b: '9', d: '4' })
    await reads({ a: '1', b: '9', d: '4' })
    const keys = files.batches[1]?.map(event => (event.kind === 'Node' ? event.key : ''))
    expect(keys?.sort()).toEqual(['b', 'c', 'd'])
  })

  const served = (name: string) => files.path(join('served', name))
  const fill = (path: string, zone: string) => {
    mkdirSync(files.path(path), { recursive: true })
    files.write(join(path, 'a.yaml'), { a: zone })
  }

  it.each([
    [
      'a file that is renamed over another',
      () => fill('served', '1'),
      () => {
        files.write('served/a.yaml.tmp', { a: '2' })
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
        mkdirSync(files.path('served'))
        symlinkSync(files.path('real/a.yaml'), served('a.yaml'))
      },
      () => fill('real', '2'),
    ],
    [
      'a folder that is replaced',
      () => fill('served', '1'),
      () => {
        renameSync(files.path('served'), files.path('old'))
        fill('served', '2')
      },
    ],
  ])('notices %s', async (_, prepare, change) => {
    prepare()
    await files.begin({ path: files.path('served') })
    await reads({ a: '1' })
    change()
    await reads({ a: '2' })
  })

  it('notices an editor that moves the old file away and writes a new one', async () => {
    await serving({ 'a.yaml': { a: '1' } })
    renameSync(files.path('a.yaml'), files.path('a.yaml~'))
    await pause(30)
    files.write('a.yaml', { a: '2' })
    await reads({ a: '2' })
    expect(files.problems).toEqual([])
  })

  it('never shows half of a file that is written in pieces', async () => {
    await serving({ 'a.yaml': { a: '1', b: '1', c: '1' } })
    files.write('a.yaml', { a: '2' })
    await pause(15)
    files.write('a.yaml', { a: '2', b: '2' })
    await pause(15)
    files.write('a.yaml', { a: '2', b: '2', c: '2' })
    await reads({ a: '2', b: '2', c: '2' })
    expect(files.batches).toHaveLength(2)
  })

  it('reads a file that changes all the time, and once more when it rests', async () => {
    await serving({ 'a.yaml': { a: '00' } })
    let zone = 10
    while (zone < 40 || known().a === '00') {
      files.write('a.yaml', { a: String(++zone) })
      await pause(20)
    }
    await reads({ a: String(zone) })
  })

  it('keeps the last good state of a broken file, says so once with its place, and says when it is read again', async () => {
    await serving({ 'a.yaml': { a: '1', b: '2' } })
    files.write('a.yaml', 'name: a\nzone: [1\nname: b\n')
    await fails(/a\.yaml:3:1: invalid YAML: .*; the last valid content stays in use \(2 objects\)/)
    await looks(3)
    expect(files.problems).toHaveLength(1)
    expect(known()).toEqual({ a: '1', b: '2' })
    files.write('a.yaml', { a: '3' })
    await reads({ a: '3' })
    expect(files.said('recovered', /a\.yaml/)).toBe(1)
  })

  it('says another reason anew, and the same one not', async () => {
    await serving({ 'a.yaml': { a: '1' } })
    files.write('a.yaml', 'x: [1\n')
    await until(() => files.problems.length === 1, 'first failure')
    files.write('a.yaml', 'a: 1\na: 2\n')
    await until(() => files.problems.length === 2, 'second failure')
    files.write('a.yaml', 'a: 1\na: 3\n')
    await looks(3)
    expect(files.problems).toHaveLength(2)
  })

  it('takes a truncated file for a torn one', async () => {
    await serving({ 'a.yaml': { a: '1' } })
    truncateSync(files.path('a.yaml'))
    await fails(/empty; the last valid content stays in use \(1 object\)/)
    expect(known()).toEqual({ a: '1' })
    files.write('a.yaml', '# nothing any more\n')
    await reads({})
  })

  it('keeps the objects of a deleted file, reports that once, and reads the file again when it returns', async () => {
    await serving({ 'a.yaml': { a: '1' }, 'b.yaml': { b: '1' } })
    rmSync(files.path('a.yaml'))
    await fails(/a\.yaml: file deleted; the last valid content stays in use/)
    expect(known()).toEqual({ a: '1', b: '1' })
    files.write('a.yaml', { a: '2' })
    await reads({ a: '2', b: '1' })
    expect(files.said('recovered', /a\.yaml/)).toBe(1)
    expect(files.problems).toHaveLength(2)
  })

  it('lets a renamed file take over its objects', async () => {
    await serving({ 'a.yaml': { a: '1', b: '1' } })
    renameSync(files.path('a.yaml'), files.path('b.yaml'))
    await looks(3)
    files.write('b.yaml', { a: '2' })
    await reads({ a: '2' })
    expect(files.said('failed', /deleted/)).toBe(0)
  })

  it('keeps everything when the folder vanishes, and says so once', async () => {
    await serving({ 'a.yaml': { a: '1' } })
    rmSync(files.folder, { recursive: true })
    await fails(/cannot read the source files \(ENOENT\); the last valid content stays in use/)
    await pause(600)
    expect(files.problems).toHaveLength(1)
    expect(known()).toEqual({ a: '1' })
    mkdirSync(files.folder)
    files.write('a.yaml', { a: '2' })
    await reads({ a: '2' })
  })

  it('is not complete while a file was never read', async () => {
    files.write('a.yaml', { a: '1' })
    files.write('b.yaml', 'x: [1\n')
    await files.begin()
    await fails(/b\.yaml.*; kprobe waits until it has read every file once$/)
    expect(files.synced).toBe(0)
    files.write('b.yaml', { b: '1' })
    await synced()
    expect(known()).toEqual({ a: '1', b: '1' })
    files.write('c.yaml', 'x: [1\n')
    await fails(/c\.yaml.*; the whole file is ignored$/)
  })

  it('waits for a path that does not exist yet', async () => {
    await files.begin({ path: files.path('later') })
    await fails(/ENOENT/)
    mkdirSync(files.path('later'))
    files.write('later/a.yaml', { a: '1' })
    await reads({ a: '1' })
  })

  it('lets the first file by name win over an object that two describe, and names the loser', async () => {
    await serving({ 'b.yaml': { a: 'b' } })
    files.write('a.yaml', { a: 'a' })
    await reads({ a: 'a' })
    expect(files.said('duplicate', /b\.yaml: Node\/a is also in a\.yaml/)).toBe(1)
    files.write('a.yaml', { other: '1' })
    await reads({ a: 'b', other: '1' })
  })

  it('does not finish a large file when it is stopped', async () => {
    const filler = 'x'.repeat(300)
    const items = Array.from({ length: 60_000 }, (_, i) => ({ kind: 'Pod', name: `n${i}`, filler }))
    files.write('large.json', JSON.stringify({ kind: 'List', items }))
    await files.begin()
    await pause(60)
    const beganMs = performance.now()
    await files.source?.stop()
    expect(performance.now() - beganMs).toBeLessThan(patientMs(5_000))
    expect([files.batches, files.problems, files.synced]).toEqual([[], [], 0])
  })

  it('stops without another word', async () => {
    await serving({ 'a.yaml': { a: '1' } })
    await files.source?.stop()
    files.write('a.yaml', { a: '2' })
    await pause(700)
    expect(known()).toEqual({ a: '1' })
  })
})
