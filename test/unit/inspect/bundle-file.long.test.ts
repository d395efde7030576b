import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { failureText } from '../../../src/base/errors.ts'
import { encodeBundle, FILE_BYTES_MAX, writeBundle } from '../../../src/inspect/bundle-file.ts'
import { tarEnd, tarHeader, tarPadding } from '../../../src/inspect/tar.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder: string

beforeEach(() => {
  folder = temporaryFolder()
})
const FACTS = { kprobe: '1.2.3' }

function file(name: string, data: string | Buffer) {
  return { name, about: 'a test', data: Buffer.from(data) }
}

/** What tar says about an archive, compressed or not. */
function tar(bytes: Buffer, ...argv: readonly string[]): string {
  const path = join(folder, 'read.tar')
  writeFileSync(path, bytes)
  return execFileSync('tar', ['-f', path, ...argv], { encoding: 'utf8' })
}

describe('a bundle', () => {
  it('leaves out a file beyond the bound of one, and names it', () => {
    const files = [file('a.bin', Buffer.alloc(FILE_BYTES_MAX + 1)), file('b.txt', 'b')]
    const { bytes, missing } = encodeBundle({ facts: FACTS, files, missing: [] })
    expect(missing).toEqual([{ name: 'a.bin', why: '64.0 MiB exceed the bound of 64.0 MiB' }])
    expect(tar(bytes, '-t')).toBe('kprobe-bundle/manifest.json\nkprobe-bundle/b.txt\n')
    expect(JSON.parse(tar(bytes, '-xO', 'kprobe-bundle/manifest.json'))).toMatchObject({
      ...{ kprobe: '1.2.3', missing },
      files: [{ name: 'b.txt', bytes: 1, about: 'a test' }],
    })
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

const archive = (...parts: readonly Uint8Array[]) => Buffer.concat([...parts, tarEnd()])

describe('a tar file', () => {
  it.each([0, 1, 512, 513])('has a file of %i bytes before another', size => {
    const file = { kind: 'file', mode: 0o644 } as const
    const data = Buffer.alloc(size, 'x')
    const bytes = archive(
      tarHeader({ ...file, path: 'a', size }),
      ...[data, tarPadding(size)],
      tarHeader({ ...file, path: 'b/c.json', size: 1 }),
      ...[Buffer.from('y'), tarPadding(1)],
    )
    expect(tar(bytes, '-t')).toBe('a\nb/c.json\n')
    expect(tar(bytes, '-xO')).toBe(`${'x'.repeat(size)}y`)
  })

  it('has a long path in two fields, which tar puts together', () => {
    const path = `${'folder/'.repeat(20)}${'name'.repeat(10)}`
    const bytes = archive(tarHeader({ kind: 'file', path, mode: 0o640, size: 0 }))
    const listed = tar(bytes, '--numeric-owner', '--utc', '-tv')
    expect(listed).toBe(`-rw-r----- 0/0               0 1970-01-01 00:00 ${path}\n`)
  })

  it('has no path that does not fit', () => {
    const head = { kind: 'file', mode: 0o644, size: 0 } as const
    expect(() => tarHeader({ ...head, path: 'x'.repeat(200) })).toThrow('too long for a tar file')
  })
})
