import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { flagOf, pagesOfFiles } from '../../../src/daemon/engine.ts'
import { releasePages } from '../../../src/netlink/native.ts'

/** A mapping as /proc/PID/smaps has it. */
function mapping(head: string, { anonymousKb = 0, swapKb = 0 } = {}): string {
  const field = (name: string, kb: number) => `${`${name}:`.padEnd(16)}${String(kb).padStart(8)} kB\n`
  return `${head}\n${field('Size', 10_240)}${field('Anonymous', anonymousKb)}${field('Swap', swapKb)}`
}

const SMAPS = [
  mapping('00400000-00e00000 r--p 00000000 fe:00 83      /usr/bin/node'),
  mapping('00e00000-01000000 r-xp 00a00000 fe:00 83      /usr/bin/node'),
  mapping('01000000-01002000 r--p 00c00000 fe:00 83      /usr/bin/node', { anonymousKb: 8 }),
  mapping('01002000-01003000 rw-p 00c02000 fe:00 83      /usr/bin/node'),
  mapping('7f0000000000-7f0000001000 r-xp 00000000 00:00 0'),
  mapping('7ffff0000000-7ffff0002000 r-xp 00000000 00:00 0                          [vdso]'),
  mapping('7f1000000000-7f1000001000 r--s 00000000 fe:00 9      /var/data'),
  mapping('7f2000000000-7f2000003000 r--p 00000000 fe:00 9      /usr/lib/a library'),
  mapping('7f3000000000-7f3000003000 r--p 00000000 fe:00 9      /usr/lib/relocated and swapped out', {
    swapKb: 12,
  }),
].join('')

describe('the flags of V8', () => {
  it('are known to this Node.js, and raise the usual value', () => {
    const flag = flagOf(Number.parseInt(process.versions.node, 10)) ?? ''
    const flags = [flag, '--semi-space-growth-factor=1', '--no-parallel-scavenge', '--no-incremental-marking']
    const script = `for (const flag of ${JSON.stringify(flags)}) require('v8').setFlagsFromString(flag)`
    expect(spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' }).stderr).toBe('')
    const { stdout } = spawnSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })
    const [name, value] = flag.split('=')
    expect(stdout).toContain(`default: ${name}=${Number(value) / 8}\n`)
  })

  it('are not set where no test has tried them', () => {
    expect([21, 27, 40].map(flagOf)).toEqual([undefined, undefined, undefined])
  })
})

describe('the pages that are released after the start', () => {
  it('are of files alone: private, not writable, and never written', () => {
    expect([...pagesOfFiles(SMAPS)]).toEqual([
      0x400000n,
      0xa00000n,
      0xe00000n,
      0x200000n,
      0x7f2000000000n,
      0x3000n,
    ])
  })

  it('are read again when they are needed', () => {
    const read = () => readFileSync('/proc/self/smaps', 'latin1')
    const residentKb = () => {
      const program = read()
        .split(/^(?=[0-9a-f]+-)/m)
        .filter(mapping => mapping.includes(process.execPath))
      return program.reduce((sum, mapping) => sum + Number(/^Rss: +(\d+)/m.exec(mapping)?.[1]), 0)
    }
    const before = residentKb()
    releasePages(pagesOfFiles(read()))
    expect(residentKb()).toBeLessThan(before)
    expect(JSON.parse('[1,2]')).toEqual([1, 2])
  })
})
