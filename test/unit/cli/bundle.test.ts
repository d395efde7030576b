import { once } from 'node:events'
import { readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createGzip, gunzipSync, gzipSync } from 'node:zlib'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { failureText } from '../../../src/base/errors.ts'
import { readTar, tarEnd, tarHeader, tarPadding } from '../../../src/base/tar.ts'
import {
  BUNDLE_BYTES_MAX,
  BUNDLE_FORMAT,
  decodeBundle,
  encodeBundle,
  FILE_BYTES_MAX,
  jsonIn,
  readBundle,
  writeBundle,
} from '../../../src/cli/bundle.ts'
import { command as replay } from '../../../src/cli/replay.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder: string

beforeEach(() => {
  folder = temporaryFolder()
})
const FACTS = { kprobe: '1.2.3' }

function file(name: string, data: string | Buffer) {
  return { name, about: 'a test', data: Buffer.from(data) }
}

function archive(entries: Readonly<Record<string, string>>): Buffer {
  const parts = Object.entries(entries).flatMap(([path, text]) => {
    const data = Buffer.from(text)
    return [tarHeader({ kind: 'file', path, mode: 0o600, size: data.length }), data, tarPadding(data.length)]
  })
  return gzipSync(Buffer.concat([...parts, tarEnd()]))
}

const manifestOf = (facts: object) => JSON.stringify({ format: BUNDLE_FORMAT, files: [], ...facts })

describe('a bundle', () => {
  it('leaves out a file beyond the bound of one, and names it', () => {
    const files = [file('a.bin', Buffer.alloc(FILE_BYTES_MAX + 1)), file('b.txt', 'b')]
    const { bytes, missing } = encodeBundle({ facts: FACTS, files, missing: [] })
    expect(missing).toEqual([{ name: 'a.bin', why: '64.0 MiB exceed the bound of 64.0 MiB' }])
    expect([...decodeBundle(bytes).files.keys()]).toEqual(['manifest.json', 'b.txt'])
  })

  it('leaves out the last files beyond the bound of all', () => {
    const large = Buffer.alloc(FILE_BYTES_MAX)
    const files = ['a.bin', 'b.bin', 'c.bin', 'd.bin'].map(name => ({ name, about: '', data: large }))
    const { missing } = encodeBundle({ facts: FACTS, files, missing: [] })
    expect(missing).toEqual([{ name: 'd.bin', why: '64.0 MiB exceed the bound of 192.0 MiB' }])
  })

  it('is written for its owner alone, and as a whole', async () => {
    const path = join(folder, 'b.tar.gz')
    writeFileSync(path, 'before', { mode: 0o666 })
    await writeBundle(path, Buffer.from('after'), 1)
    expect([readFileSync(path, 'utf8'), statSync(path).mode & 0o777]).toEqual(['after', 0o600])
    const lost = join(folder, 'no/b')
    const error: unknown = await writeBundle(lost, Buffer.from('x'), 1).catch((thrown: unknown) => thrown)
    expect(failureText(error)).toBe(`cannot write ${lost} (ENOENT)`)
    // A link in the place of the draft leads nowhere.
    symlinkSync(join(folder, 'elsewhere'), `${path}.2.tmp`)
    await expect(writeBundle(path, Buffer.from('x'), 2)).rejects.toThrow('EEXIST')
    expect(readdirSync(folder)).toEqual(['b.tar.gz'])
  })

  it('does not replace what is no regular file', async () => {
    const path = join(folder, 'socket')
    const server = createServer().listen(path)
    await once(server, 'listening')
    await expect(writeBundle(path, Buffer.from('x'), 1)).rejects.toThrow(`cannot write ${path} (ENXIO)`)
    expect(statSync(path).isSocket()).toBe(true)
    server.close()
  })
})

describe('F175: a bundle that somebody else has made is refused:', () => {
  const whole = encodeBundle({ facts: FACTS, files: [file('a.json', '{}')], missing: [] }).bytes

  it.each([
    ['no gzip', Buffer.from('text'), 'is not a complete gzip file'],
    ['torn', whole.subarray(0, whole.length - 9), 'is not a complete gzip file'],
    ['no tar', gzipSync(Buffer.alloc(600, 1)), 'not a tar file'],
    ['empty', gzipSync(tarEnd()), 'it lacks kprobe-bundle/manifest.json'],
    ['without entries', gzipSync(Buffer.alloc(0)), 'the archive ends within an entry'],
    ['a path above it', archive({ '../kprobe-bundle/a.json': '' }), 'it has "../kprobe-bundle/a.json"'],
    [
      'a path through it',
      archive({ 'kprobe-bundle/../../a.json': '' }),
      'it has "kprobe-bundle/../../a.json"',
    ],
    ['an absolute path', archive({ '/etc/passwd.txt': '' }), 'it has "/etc/passwd.txt"'],
    ['foreign', archive({ 'package/package.json': '{}' }), 'it has "package/package.json"'],
    ['no JSON', archive({ 'kprobe-bundle/manifest.json': '{' }), 'has a manifest.json that is not JSON'],
    ['no format', archive({ 'kprobe-bundle/manifest.json': '{}' }), 'manifest.json has no format'],
    [
      'newer',
      archive({ 'kprobe-bundle/manifest.json': manifestOf({ format: BUNDLE_FORMAT + 1, kprobe: '9.0.0' }) }),
      `has format ${BUNDLE_FORMAT + 1}, and this kprobe reads ${BUNDLE_FORMAT}: use kprobe 9.0.0`,
    ],
    [
      'without a file',
      archive({
        'kprobe-bundle/manifest.json': manifestOf({ files: [{ name: 'a.json', bytes: 2 }] }),
      }),
      'lacks a.json',
    ],
    [
      'a file twice',
      gzipSync(Buffer.concat([gunzipSync(whole).subarray(0, -1024), gunzipSync(whole)])),
      'has two files "manifest.json"',
    ],
  ])('%s', (_, bytes, message) => {
    expect(() => decodeBundle(bytes)).toThrow(message)
  })

  it.each([
    ['manifest.json', '['.repeat(4 << 20), /manifest\.json of 4\.0 MiB/],
    ['snapshot.json', '['.repeat(4 << 20), /snapshot\.json of more than 3145728 values/],
    ['snapshot.json', '{"a":0,'.repeat(2 << 20), /snapshot\.json of more than/],
  ])('with a %s of millions of values in a line, before that is parsed', (name, text, reason) => {
    const entries = { 'kprobe-bundle/manifest.json': manifestOf({}), [`kprobe-bundle/${name}`]: text }
    const bytes = archive(entries)
    const parse = vi.spyOn(JSON, 'parse')
    expect(() => jsonIn(decodeBundle(bytes), name)).toThrow(reason)
    expect(Math.max(0, ...parse.mock.calls.map(([parsed]) => parsed.length))).toBeLessThan(1_000)
    parse.mockRestore()
  })

  it('with a link, whatever it leads to', () => {
    const path = 'kprobe-bundle/manifest.json'
    const link = tarHeader({ kind: 'link', path, mode: 0o777, size: 0, target: '/etc/shadow' })
    expect(() => decodeBundle(gzipSync(Buffer.concat([link, tarEnd()])))).toThrow(
      `"${path}" is not a regular file`,
    )
  })

  it('with more in it than any bundle has, before it is all unpacked', async () => {
    const zeros = Buffer.alloc(1024 * 1024)
    const gzip = createGzip({ level: 1 })
    const chunks: Buffer[] = []
    gzip.on('data', (chunk: Buffer) => chunks.push(chunk))
    const ended = new Promise(done => gzip.on('end', done))
    for (let written = 0; written <= BUNDLE_BYTES_MAX + 2 * zeros.length; written += zeros.length)
      if (!gzip.write(zeros)) await new Promise(done => gzip.once('drain', done))
    gzip.end()
    await ended
    expect(() => decodeBundle(Buffer.concat(chunks))).toThrow('is larger than 193.0 MiB unpacked')
  })

  it('as a folder, and where there is none', async () => {
    await expect(readBundle(folder)).rejects.toThrow('is not a regular file')
    await expect(readBundle(join(folder, 'none'))).rejects.toThrow('ENOENT')
  })
})

describe('kprobe replay', () => {
  const run = async (...argv: readonly string[]) => {
    const io = new FakeIo()
    return { code: await replay.run(argv, io), out: io.stdout, err: io.stderr }
  }

  it('says what is in a bundle, on clean lines', async () => {
    const path = join(folder, 'b.tar.gz')
    const facts = { ...FACTS, node: 'a\u001b[2Jb', created: 'now', notes: ['elsewhere'] }
    const missing = [{ name: 'c.json', why: 'no daemon' }]
    writeFileSync(path, encodeBundle({ facts, files: [file('a.json', '{}')], missing }).bytes)
    expect(await run(path)).toEqual({
      code: 0,
      err: '',
      out: [
        'bundle of node a\\u{1b}[2Jb, now',
        'written by kprobe 1.2.3; daemon: undefined; kernel undefined',
        'note: elsewhere',
        '  a.json, 2 bytes: a test',
        '  missing c.json: no daemon',
        '',
      ].join('\n'),
    })
  })

  it.each([
    [[], 2, 'kprobe replay: FILE: is missing'],
    [['a', 'b'], 2, '"b": no such argument; a command comes behind --'],
    [['a', '--', 'run'], 2, '"run": no command for a bundle; there are dump, explain, plan, verify, why'],
    [['/dev/null'], 1, 'kprobe replay: /dev/null: is not a regular file'],
  ])('%j ends with %i', async (argv, code, message) => {
    const ended = await run(...argv)
    expect([ended.code, ended.out]).toEqual([code, ''])
    expect(ended.err).toContain(message)
  })

  it('leaves nothing of a bundle on disk', async () => {
    const bundle = encodeBundle({ facts: FACTS, files: [file('a.json', '{}')], missing: [] })
    expect([...readTar(gunzipSync(bundle.bytes))].map(({ path }) => path)).toEqual([
      'kprobe-bundle/manifest.json',
      'kprobe-bundle/a.json',
    ])
    writeFileSync(join(folder, 'b'), bundle.bytes)
    await run(join(folder, 'b'))
    expect(readdirSync(folder)).toEqual(['b'])
  })
})
