import { describe, expect, it } from 'vitest'
import { Connection } from '../../../src/netlink/connection.ts'
import { patientBurst } from '../../../src/netlink/patient-burst.ts'
import { SystemError } from '../../../src/netlink/transport.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FaultyTransport } from '../../support/faulty-transport.ts'
import { ScriptedTransport } from '../../support/scripted-transport.ts'

const BURST = { bytes: Uint8Array.of(1), has: () => false }

async function send(failures: readonly string[]) {
  const clock = new FakeClock()
  const script = new ScriptedTransport(() => [])
  let sends = 0
  const onSend = (datagram: Uint8Array): Uint8Array => {
    const code = failures[sends++]
    if (code !== undefined) throw new SystemError('sendmsg', 1, code)
    return datagram
  }
  const connection = new Connection({ transport: new FaultyTransport(script, { onSend }), clock })
  const outcome = patientBurst({ connection, clock }, BURST, { pool: true, object: 'things' })
  await clock.advance(1_000)
  return { outcome: await outcome, sends, sent: script.sent.length }
}

describe('a burst', () => {
  it('is sent again when the failure may pass', async () => {
    const { outcome, sends, sent } = await send(['EAGAIN', 'ENOBUFS', 'EINTR'])
    expect(outcome).toMatchObject({ errors: [], loss: undefined })
    expect([sends, sent]).toEqual([4, 1])
  })

  it('is given up after four attempts', async () => {
    const { outcome, sends, sent } = await send(['ENOMEM', 'ENOMEM', 'ENOMEM', 'ENOMEM'])
    expect(outcome).toMatchObject({ name: 'SystemError', code: 'ENOMEM' })
    expect([sends, sent]).toEqual([4, 0])
  })

  it('is given up at once when trying again cannot help', async () => {
    const { outcome, sends } = await send(['EPERM'])
    expect(outcome).toMatchObject({ name: 'SystemError', code: 'EPERM' })
    expect(sends).toBe(1)
  })
})
