import { expect, it } from 'vitest'
import type { IpvsTimeouts } from '../../../../src/kernel/ipvs/state.ts'
import { applyTimeouts } from '../../../../src/modes/ipvs/mode.ts'

const PRESENT: IpvsTimeouts = { tcpS: 900, tcpFinS: 120, udpS: 300 }

it('sets the timeouts that differ, and none where nothing is asked for, or what there is', () => {
  const sent: IpvsTimeouts[] = []
  const client = {
    timeouts: () => PRESENT,
    setTimeouts: (timeouts: IpvsTimeouts) => void sent.push(timeouts),
  }
  applyTimeouts(client, { tcpS: 0, tcpFinS: 0, udpS: 0 })
  applyTimeouts(client, { tcpS: 900, tcpFinS: 0, udpS: 300 })
  expect(sent).toEqual([])
  applyTimeouts(client, { tcpS: 0, tcpFinS: 30, udpS: 300 })
  expect(sent).toEqual([{ tcpS: 0, tcpFinS: 30, udpS: 0 }])
})
