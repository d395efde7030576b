import { expect, it } from 'vitest'
import { DEFAULT_LIMITS } from '../../../../src/dataplane/userspace/relay/context.ts'
import { limitsWithin, type ProcessRoom } from '../../../../src/dataplane/userspace/relay/limits.ts'

const GIB = 2 ** 30

it.each<[room: ProcessRoom, connections: number, sessions: number]>([
  [{ descriptors: undefined, memoryBytes: undefined }, 4_096, 4_096],
  [{ descriptors: 1 << 20, memoryBytes: 2 ** 64 }, 4_096, 4_096],
  [{ descriptors: 24_576, memoryBytes: 2 * GIB }, 4_096, 4_096],
  [{ descriptors: 1_200, memoryBytes: undefined }, 200, 200],
  // Of deploy/kubernetes.
  [{ descriptors: 1 << 20, memoryBytes: GIB / 2 }, 1_024, 4_096],
  [{ descriptors: 100, memoryBytes: 1 << 20 }, 64, 64],
])('leaves half of %j to all else', (room, connections, sessions) => {
  expect(limitsWithin(room)).toEqual({ ...DEFAULT_LIMITS, connections, sessions })
})
