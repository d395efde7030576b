import { expect, it } from 'vitest'
import * as socket from '../../../../src/kernel/socket/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

it('gives every constant the value it has in the kernel headers', () => {
  const { TCPF_LISTEN, TCPF_CLOSE, INET_DIAG_NOCOOKIE, ...constants } = socket
  const ours = new Map<string, number>(Object.entries(constants))
  const headers = ['sys/socket.h', 'netinet/in.h', 'linux/sock_diag.h', 'linux/inet_diag.h']
  expect([...ours]).toEqual([...valuesInHeaders({ headers, names: [...ours.keys()] })])
  // The states are bits of those in netinet/tcp.h; the cookie is written without its sign there.
  const states = valuesInHeaders({ headers: ['netinet/tcp.h'], names: ['TCP_LISTEN', 'TCP_CLOSE'] })
  expect([TCPF_LISTEN, TCPF_CLOSE]).toEqual([...states].map(([, state]) => 1 << state))
  expect(INET_DIAG_NOCOOKIE).toBe(~0 >>> 0)
})
