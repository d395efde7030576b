import { describe, expect, it } from 'vitest'
import type { IpvsTimeouts } from '../../../../src/kernel/ipvs/state.ts'
import { applyTimeouts, timeoutsToSet } from '../../../../src/modes/ipvs/mode.ts'

const PRESENT: IpvsTimeouts = { tcpS: 900, tcpFinS: 120, udpS: 300 }

describe('timeouts', () => {
  it('are left alone where nothing is asked for, or what there is', () => {
    expect(timeoutsToSet(PRESENT, { tcpS: 0, tcpFinS: 0, udpS: 0 })).toBeUndefined()
    expect(timeoutsToSet(PRESENT, { tcpS: 900, tcpFinS: 0, udpS: 300 })).toBeUndefined()
  })

  it('are set where they differ, and what was before is told', () => {
    const sent: IpvsTimeouts[] = []
    const client = {
      timeouts: () => PRESENT,
      setTimeouts: (timeouts: IpvsTimeouts) => void sent.push(timeouts),
    }
    expect(applyTimeouts(client, { tcpS: 0, tcpFinS: 30, udpS: 300 })).toBe(PRESENT)
    expect(sent).toEqual([{ tcpS: 0, tcpFinS: 30, udpS: 0 }])
    expect(applyTimeouts(client, { tcpS: 0, tcpFinS: 0, udpS: 300 })).toBeUndefined()
    expect(sent).toHaveLength(1)
  })
})
