import { expect, it } from 'vitest'
import { listIpsetNames, listRequest } from '../../../../src/kernel/ipset/client.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import {
  attribute,
  datagram,
  doneMessage,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  u32,
} from '../../../support/scripted-transport.ts'

const EINVAL = 22
const EPERM = 1

function setMessage(sequence: number, name: string): string {
  const payload = `\0\0\0\0${attribute(1, '\x06')}${attribute(2, `${name}\0`)}`
  return message({ type: 0x607, flags: 2, sequence, portId: 77, payload })
}

function names(answer: (sequence: number) => Uint8Array): Promise<readonly string[]> {
  const transport = new ScriptedTransport(sent => [answer(sequenceOf(sent))])
  return listIpsetNames(new Connection({ transport, clock: new FakeClock() }))
}

it('asks for the names alone', () => {
  const request = Buffer.from(listRequest(7))
  expect(request.readUInt16LE(4)).toBe(0x607)
  expect(request.subarray(20).toString('latin1')).toBe(`${attribute(1, '\x06')}${attribute(6, '\0\0\0\x02')}`)
  expect(request.readUInt32LE(0)).toBe(request.length)
  expect(request.subarray(8, 12).toString('latin1')).toBe(u32(7))
})

it('gives the names that the kernel tells', async () => {
  const found = await names(sequence =>
    datagram(setMessage(sequence, 'KUBE-CLUSTER-IP'), setMessage(sequence, 'mine'), doneMessage(sequence)),
  )
  expect(found).toEqual(['KUBE-CLUSTER-IP', 'mine'])
})

it('finds none where the kernel has no ipsets, and hides no other error', async () => {
  expect(await names(sequence => datagram(errorMessage(sequence, EINVAL)))).toEqual([])
  await expect(names(sequence => datagram(errorMessage(sequence, EPERM)))).rejects.toThrow('EPERM')
})
