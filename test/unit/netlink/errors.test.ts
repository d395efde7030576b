import { expect, it } from 'vitest'
import { malformed, NetlinkError, OutcomeUnknownError, unencodable } from '../../../src/netlink/errors.ts'

it('says what was done, to what, and the kernel’s own words', () => {
  const object = 'ip kube-proxy frontends (ns1/web)'
  const error = new NetlinkError({ operation: 'add element', object, errno: 17, offset: 56, sequence: 9 })
  expect(error.message).toBe('add element ip kube-proxy frontends (ns1/web): EEXIST (File exists)')
  expect(error).toMatchObject({ code: 'EEXIST', errno: 17, offset: 56, sequence: 9, extendedAck: undefined })
})

it('adds the extended acknowledgement', () => {
  const error = new NetlinkError({ operation: 'dump', object: '', errno: 95, extendedAck: 'no such thing' })
  expect(error.message).toBe('dump: EOPNOTSUPP (Operation not supported): no such thing')
})

it('names an errno that only its subsystem has', () => {
  const meaning = { code: 'IPSET_ERR_HASH_FULL', words: 'Hash is full' }
  const error = new NetlinkError({ operation: 'add', object: 'KUBE-CLUSTER-IP', errno: 4352, meaning })
  expect(error.message).toBe('add KUBE-CLUSTER-IP: IPSET_ERR_HASH_FULL (Hash is full)')
  expect(error).toMatchObject({ code: 'IPSET_ERR_HASH_FULL', errno: 4352 })
})

it('keeps the cause', () => {
  const cause = new Error('recvmsg')
  expect(new OutcomeUnknownError({ operation: 'commit', object: 'x', errno: 105, cause }).cause).toBe(cause)
})

it('tells bytes that cannot be read from values that cannot be written', () => {
  expect(malformed('nonsense', 12)).toMatchObject({ code: 'EBADMSG', offset: 12 })
  expect(unencodable('too long')).toMatchObject({ code: 'EMSGSIZE' })
})
