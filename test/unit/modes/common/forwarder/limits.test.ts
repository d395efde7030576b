import { expect, it } from 'vitest'
import { DEFAULT_LIMITS, limitsWithin } from '../../../../../src/modes/common/forwarder/context.ts'
import type { ProcessRoom } from '../../../../../src/modes/mode.ts'

const GIB = 2 ** 30

it.each<[room: ProcessRoom, listeners: number, connections: number, sessions: number]>([
  [{ descriptors: undefined, memoryBytes: undefined }, 8_192, 4_096, 4_096],
  [{ descriptors: 1 << 20, memoryBytes: 2 ** 64 }, 8_192, 4_096, 4_096],
  [{ descriptors: 20_480, memoryBytes: 2 * GIB }, 8_192, 4_096, 4_096],
  [{ descriptors: 1_200, memoryBytes: undefined }, 480, 240, 240],
  // Of deploy/kubernetes.
  [{ descriptors: 1 << 20, memoryBytes: GIB / 2 }, 8_192, 1_024, 4_096],
  [{ descriptors: 1_200, memoryBytes: 1 << 20 }, 480, 64, 240],
  [{ descriptors: 20, memoryBytes: 1 << 20 }, 8, 4, 4],
  [{ descriptors: 0, memoryBytes: undefined }, 0, 0, 0],
])('F140: stays within %j', (room, listeners, connections, sessions) => {
  expect(limitsWithin(room)).toEqual({ ...DEFAULT_LIMITS, listeners, connections, sessions })
})
