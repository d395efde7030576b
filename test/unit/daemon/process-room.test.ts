import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import {
  daemonDescriptors,
  heapLimit,
  memoryLimit,
  optimizingThreshold,
  pagesOfFiles,
  partsMax,
  servicesBytes,
} from '../../../src/daemon/process-room.ts'
import { releasePages } from '../../../src/netlink/native.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { parseFlags } from '../../support/parse-flags.ts'

const MIB = 1 << 20

describe('daemonDescriptors', () => {
  const relayOf = (...flags: readonly string[]): number => {
    const parsed = parseFlags(['--source=file:/objects', ...flags], { hostName: 'here' })
    if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
    const room = { descriptors: 1_024, memoryBytes: undefined }
    return daemonDescriptors(room, parsed.value.config).relay
  }

  it('KEP-6032: gives the relay of node ports at localhost the share of a relay', () => {
    const share = relayOf('--proxy-mode=userspace')
    expect(share).toBeGreaterThan(relayOf())
    expect(relayOf('--nodeport-addresses=primary,localhost')).toBe(share)
    expect(relayOf('--nodeport-addresses=all')).toBe(relayOf())
    expect(relayOf('--proxy-mode=iptables', '--nodeport-addresses=localhost')).toBe(relayOf())
  })
})

let root: string

beforeEach(() => {
  root = temporaryFolder()
  write('proc/meminfo', 'MemTotal:       24683520 kB\nMemFree: 1 kB\n')
})

function write(path: string, text: string | number): void {
  mkdirSync(dirname(join(root, path)), { recursive: true })
  writeFileSync(join(root, path), `${text}`)
}

describe('the memory of this process', () => {
  it('is that of the machine where no control group limits it', () => {
    write('proc/self/cgroup', '0::/kprobe\n')
    write('sys/fs/cgroup/kprobe/memory.max', 'max\n')
    expect(memoryLimit(root)).toBe(24683520 * 1024)
  })

  it('F133: is the least limit on the way up from its control group', () => {
    write('proc/self/cgroup', '0::/pods/kprobe\n')
    write('sys/fs/cgroup/pods/kprobe/memory.max', 'max\n')
    write('sys/fs/cgroup/pods/memory.max', 512 * MIB)
    write('sys/fs/cgroup/memory.max', 1024 * MIB)
    expect(memoryLimit(root)).toBe(512 * MIB)
  })

  it('F133: is that of the mount where a container sees its own group there', () => {
    write('proc/self/cgroup', '5:devices:/docker/1\n4:cpu,memory:/docker/1\n0::/../..\n')
    write('sys/fs/cgroup/memory/memory.limit_in_bytes', 300 * MIB)
    expect(memoryLimit(root)).toBe(300 * MIB)
    write('sys/fs/cgroup/memory.max', 200 * MIB)
    expect(memoryLimit(root)).toBe(200 * MIB)
  })

  it('F133: names a file that cannot be read for another reason', () => {
    mkdirSync(join(root, 'proc/self/cgroup'), { recursive: true })
    expect(() => memoryLimit(root)).toThrow(/cannot read .*proc\/self\/cgroup to find the memory limit$/)
  })

  it('divides three fifths among Services and parts of objects, of a heap that is small by itself as well', () => {
    expect(servicesBytes({ memoryBytes: 500 * MIB })).toBe(225 * MIB)
    expect(partsMax({ memoryBytes: 500 * MIB })).toBe((75 * MIB) / 128)
    expect(partsMax({ memoryBytes: 512 * MIB })).toBe(629_145)
    expect(servicesBytes({ memoryBytes: 500 * MIB, heapBytes: 100 * MIB })).toBe(90 * MIB)
    expect([servicesBytes(), partsMax()]).toEqual([undefined, undefined])
  })

  it('F150: does not count the young generation, which Node.js adds to the option', () => {
    expect(heapLimit(259 * MIB, ['--enable-source-maps'])).toBe(259 * MIB)
    expect(heapLimit(144 * MIB, ['--max_old_space_size=200', '--max-old-space-size=96'])).toBe(96 * MIB)
    expect(heapLimit(259 * MIB, ['--max-old-space-size=0'])).toBe(259 * MIB)
  })
})

const SMAPS = `00400000-00e00000 r--p 00000000 fe:00 83      /usr/bin/node
Size:              10240 kB
Anonymous:             0 kB
Swap:                  0 kB
00e00000-01000000 r-xp 00a00000 fe:00 83      /usr/bin/node
Anonymous:             0 kB
Swap:                  0 kB
01000000-01002000 r--p 00c00000 fe:00 83      /usr/bin/node
Anonymous:             8 kB
Swap:                  0 kB
01002000-01003000 rw-p 00c02000 fe:00 83      /usr/bin/node
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r-xp 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7ffff0000000-7ffff0002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
7f1000000000-7f1000001000 r--s 00000000 fe:00 9      /var/data
Anonymous:             0 kB
Swap:                  0 kB
7f2000000000-7f2000003000 r--p 00000000 fe:00 9      /usr/lib/a library
Anonymous:             0 kB
Swap:                  0 kB
7f3000000000-7f3000003000 r--p 00000000 fe:00 9      /usr/lib/relocated and swapped out
Anonymous:             0 kB
Swap:                 12 kB
`

describe('the flags of V8', () => {
  it('are known to this Node.js, and the usual value is its own', () => {
    const threshold = optimizingThreshold(Number.parseInt(process.versions.node, 10))
    const others = ['--semi-space-growth-factor=1', '--no-parallel-scavenge', '--no-memory-reducer']
    const flags = [threshold?.raised, threshold?.usual, ...others]
    const script = `for (const flag of ${JSON.stringify(flags)}) require('v8').setFlagsFromString(flag)`
    expect(spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' }).stderr).toBe('')
    const { stdout } = spawnSync(process.execPath, ['--v8-options'], { encoding: 'utf8' })
    expect(stdout).toContain(`default: ${threshold?.usual}\n`)
  })

  it('are not set where no test has tried them', () => {
    expect([21, 27, 40].map(optimizingThreshold)).toEqual([undefined, undefined, undefined])
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
