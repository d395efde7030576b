import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import {
  apiDescriptors,
  daemonDescriptors,
  heapLimit,
  memoryLimit,
  partsMax,
  servicesBytes,
} from '../../../src/daemon/process-room.ts'
import { temporaryFolder } from '../../support/folder.ts'

const MIB = 1 << 20

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

const roomOf = (descriptors: number | undefined) => ({ descriptors, memoryBytes: undefined })

describe('daemonDescriptors', () => {
  it.each([
    ['unknown', undefined],
    ['high', 1 << 20],
    ['just enough', 3 * 20_480 + 128],
  ])('F140: gives every part what it needs where the limit is %s', (_, limit) => {
    expect(daemonDescriptors(roomOf(limit))).toEqual({
      healthz: 512,
      metrics: 512,
      healthChecks: 1_024,
      healthCheckListeners: 8_192,
      api: 2_048,
      relay: 20_480,
    })
  })

  it.each([64, 100, 256, 1_024, 4_096, 8_192, 16_384, 30_000])(
    'F140: leaves a reserve of 128, or of half, of %i descriptors',
    limit => {
      for (const budget of [daemonDescriptors(roomOf(limit)), apiDescriptors(roomOf(limit))]) {
        const parts = Object.values(budget)
        const given = parts.reduce((sum, part) => sum + part, 0)
        expect(limit - given).toBeGreaterThanOrEqual(Math.min(128, limit / 2))
        expect(Math.min(...parts)).toBeGreaterThanOrEqual(0)
      }
    },
  )

  it('F140: divides by weight what is not enough for all', () => {
    expect(daemonDescriptors(roomOf(1_024))).toEqual({
      healthz: 49,
      metrics: 49,
      healthChecks: 99,
      healthCheckListeners: 298,
      api: 99,
      relay: 298,
    })
    expect(apiDescriptors(roomOf(1_024))).toMatchObject({ metrics: 298, api: 597 })
  })
})
