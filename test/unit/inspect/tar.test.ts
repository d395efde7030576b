import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { tarEnd, tarHeader, tarPadding } from '../../../src/inspect/tar.ts'
import { temporaryFolder } from '../../support/folder.ts'

/** Writes an archive, and gives its path. */
function archive(...parts: readonly Uint8Array[]): string {
  const path = join(temporaryFolder(), 'a.tar')
  writeFileSync(path, Buffer.concat([...parts, tarEnd()]))
  return path
}

function tar(...argv: readonly string[]): string {
  return execFileSync('tar', argv, { encoding: 'utf8' })
}

describe('a tar file', () => {
  it.each([0, 1, 512, 513])('has a file of %i bytes before another', size => {
    const file = { kind: 'file', mode: 0o644 } as const
    const data = Buffer.alloc(size, 'x')
    const path = archive(
      tarHeader({ ...file, path: 'a', size }),
      ...[data, tarPadding(size)],
      tarHeader({ ...file, path: 'b/c.json', size: 1 }),
      ...[Buffer.from('y'), tarPadding(1)],
    )
    expect(tar('-tf', path)).toBe('a\nb/c.json\n')
    expect(tar('-xOf', path)).toBe(`${'x'.repeat(size)}y`)
  })

  it('has a long path in two fields, which tar puts together', () => {
    const path = `${'folder/'.repeat(20)}${'name'.repeat(10)}`
    const listed = tar(
      '--numeric-owner',
      '--utc',
      '-tvf',
      archive(tarHeader({ kind: 'file', path, mode: 0o640, size: 0 })),
    )
    expect(listed).toBe(`-rw-r----- 0/0               0 1970-01-01 00:00 ${path}\n`)
  })

  it('has no path that does not fit', () => {
    const head = { kind: 'file', mode: 0o644, size: 0 } as const
    expect(() => tarHeader({ ...head, path: 'x'.repeat(200) })).toThrow('too long for a tar file')
  })
})
