import { execFileSync } from 'node:child_process'
import { closeSync, constants, openSync, readFileSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { LineWriter } from '../../../src/base/log.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder: string

beforeEach(() => {
  folder = temporaryFolder()
})

function writerTo(fd: number): LineWriter {
  return new LineWriter({ fd, lostLine: lines => `lost ${lines}\n` })
}

describe('LineWriter', () => {
  it('writes lines to a file, after what stands there', () => {
    const path = join(folder, 'log')
    const fd = openSync(path, 'w')
    const writer = writerTo(fd)
    for (const line of ['one\n', 'two\n']) writer.write(line)
    closeSync(fd)
    expect(readFileSync(path, 'utf8')).toBe('one\ntwo\n')
  })

  it('loses what a full pipe does not take, whole lines only, and reports how many when it is read again', () => {
    const path = join(folder, 'pipe')
    execFileSync('mkfifo', [path])
    // Open at both ends: nothing waits for the other end.
    const fd = openSync(path, constants.O_RDWR)
    const writer = writerTo(fd)
    const line = (number: number) => `${number} ${'x'.repeat(9_000)}\n`
    for (let number = 0; number < 20; number++) writer.write(line(number))
    const room = Buffer.alloc(1 << 20)
    let text = room.toString('utf8', 0, readSync(fd, room))
    writer.write('last\n')
    text += room.toString('utf8', 0, readSync(fd, room))
    closeSync(fd)
    const lines = text.trimEnd().split('\n')
    const whole = lines.length - 2
    expect(lines.slice(0, whole)).toEqual(Array.from({ length: whole }, (_, i) => line(i).trimEnd()))
    expect(lines.slice(whole)).toEqual([`lost ${20 - whole}`, 'last'])
  })

  it('goes on after a full disk', () => {
    const fd = openSync('/dev/full', 'w')
    const writer = writerTo(fd)
    expect(() => writer.write('one\n')).not.toThrow()
    closeSync(fd)
  })
})
