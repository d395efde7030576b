import { describe, expect, it } from 'vitest'
import { whyNotConditionType } from '../../../src/config/node-condition-type.ts'
import { conditionPatch, conditionState } from '../../../src/telemetry/node-condition.ts'

const TYPE = 'ServiceProxyReady'
const GOOD = conditionState({ verified: true, healthy: true })
const STALLED = conditionState({ verified: true, healthy: false })
const WALL_MS = Date.parse('2026-03-04T05:06:07.890Z')

function nodeWith(...conditions: readonly object[]): object {
  return { kind: 'Node', status: { conditions: [{ type: 'Ready', status: 'True' }, ...conditions] } }
}

const patch = (state: typeof GOOD, node: unknown) =>
  conditionPatch({ type: TYPE, state, wallMs: WALL_MS }, node)

describe('the node condition', () => {
  it('is True once the first sync is verified, and False with a reason otherwise', () => {
    expect(GOOD).toMatchObject({ status: 'True', reason: 'Programmed' })
    for (const healthy of [false, true])
      expect(conditionState({ verified: false, healthy })).toMatchObject({
        status: 'False',
        reason: 'NotProgrammed',
      })
    expect(STALLED).toMatchObject({ status: 'False', reason: 'ProgrammingStalled' })
  })

  it('is patched alone, with times in whole seconds', () => {
    expect(patch(GOOD, nodeWith())).toEqual({
      status: {
        conditions: [
          {
            type: TYPE,
            ...GOOD,
            lastHeartbeatTime: '2026-03-04T05:06:07Z',
            lastTransitionTime: '2026-03-04T05:06:07Z',
          },
        ],
      },
    })
  })

  it('keeps the time of the last change while only the reason changes', () => {
    const found = { type: TYPE, ...STALLED, message: 'other', lastTransitionTime: '2026-01-01T00:00:00Z' }
    expect(patch(STALLED, nodeWith(found))).toMatchObject({
      status: { conditions: [{ lastTransitionTime: '2026-01-01T00:00:00Z' }] },
    })
    expect(patch(GOOD, nodeWith(found))).toMatchObject({
      status: { conditions: [{ lastTransitionTime: '2026-03-04T05:06:07Z' }] },
    })
  })

  it('is not patched where the Node says so, and is where the Node is odd', () => {
    expect(patch(GOOD, nodeWith({ type: TYPE, ...GOOD }))).toBeUndefined()
    for (const node of [undefined, {}, { status: { conditions: 'none' } }, { status: { conditions: [7] } }])
      expect(patch(GOOD, node)).toBeDefined()
  })
})

describe('the type of the condition', () => {
  it.each(['ServiceProxyReady', 'example.com/ProxyReady', 'a'])('may be %s', type => {
    expect(whyNotConditionType(type)).toBeUndefined()
  })

  it.each([
    ['Ready', 'is a condition that kubelet'],
    ['NetworkUnavailable', 'is a condition that kubelet'],
    ['with blank', 'is not the type'],
    ['/x', 'is not the type'],
    ['x/', 'is not the type'],
    ['x'.repeat(317), 'is not the type'],
  ])('is not %s', (type, why) => {
    expect(whyNotConditionType(type)).toContain(why)
  })
})
