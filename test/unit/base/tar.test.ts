import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { readTar, tarEnd, tarHeader, tarPadding } from '../../../src/base/tar.ts'
import { temporaryFolder } from '../../support/folder.ts'

function archive(...entries: readonly (readonly [path: string, text: string])[]): Buffer {
  const parts = entries.flatMap(([path, text]) => {
    const data = Buffer.from(text)
    return [tarHeader({ kind: 'file', path, mode: 0o644, size: data.length }), data, tarPadding(data.length)]
  })
  return Buffer.concat([...parts, tarEnd()])
}

function read(bytes: Buffer): readonly (readonly [string, string])[] {
  return [...readTar(bytes)].map(({ path, data }) => [path, data.toString()])
}

describe('a tar file', () => {
  it('gives back what was written', () => {
    const long = `${'folder/'.repeat(20)}file`
    const entries = [
      ['a', ''],
      ['b/c.json', 'x'.repeat(512)],
      [long, 'y'.repeat(513)],
    ] as const
    expect(read(archive(...entries))).toEqual(entries)
  })

  it('has a long path in two fields, which tar puts together', () => {
    const folder = temporaryFolder()
    const path = `${'folder/'.repeat(20)}${'name'.repeat(10)}`
    const file = join(folder, 'a.tar')
    writeFileSync(file, Buffer.concat([tarHeader({ kind: 'file', path, mode: 0o640, size: 0 }), tarEnd()]))
    const listed = execFileSync('tar', ['--numeric-owner', '--utc', '-tvf', file], { encoding: 'utf8' })
    expect(listed).toBe(`-rw-r----- 0/0               0 1970-01-01 00:00 ${path}\n`)
  })

  it('has no path that does not fit', () => {
    const head = { kind: 'file', mode: 0o644, size: 0 } as const
    expect(() => tarHeader({ ...head, path: 'x'.repeat(200) })).toThrow('too long for a tar file')
  })

  it('skips folders', () => {
    const folder = tarHeader({ kind: 'folder', path: 'a', mode: 0o755, size: 0 })
    expect(read(Buffer.concat([folder, archive(['a/b', 'c'])]))).toEqual([['a/b', 'c']])
  })

  it('is refused with a link, naming it', () => {
    const link = tarHeader({ kind: 'link', path: 'a', mode: 0o777, size: 0, target: '/etc/passwd' })
    expect(() => read(Buffer.concat([link, tarEnd()]))).toThrow('"a" is not a regular file: type "2"')
  })

  it('is refused when it is cut off at any byte', () => {
    const whole = archive(['a', 'text'])
    for (const length of [0, 1, 511, 512, 514, 600, 1024, 1030])
      expect(() => read(whole.subarray(0, length)), `${length} bytes`).toThrow('the archive ends within')
  })

  it('is refused when one bit of a header differs', () => {
    const bytes = archive(['a', 'text'])
    bytes.writeUInt8(bytes.readUInt8(100) ^ 1, 100)
    expect(() => read(bytes)).toThrow('not a tar file: the header at byte 0')
  })

  it('is refused when an entry claims more bytes than there are', () => {
    const header = tarHeader({ kind: 'file', path: 'a', mode: 0o644, size: 8 ** 11 - 1 })
    expect(() => read(Buffer.concat([header, tarEnd()]))).toThrow(
      'the archive ends within a: 8589934591 bytes',
    )
  })
})
