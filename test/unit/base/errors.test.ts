import { expect, it } from 'vitest'
import { privilegeHint } from '../../../src/base/errors.ts'
import { SystemError } from '../../../src/netlink/transport.ts'

it('finds a missing privilege behind any number of errors, and nothing in others', () => {
  const denied = new Error('commit', {
    cause: new Error('send', { cause: new SystemError('sendmsg', 1, 'EPERM') }),
  })
  expect(privilegeHint(denied)).toContain('CAP_NET_ADMIN')
  expect(privilegeHint(new SystemError('sendmsg', 22, 'EINVAL'))).toBeUndefined()
  expect(privilegeHint('EPERM')).toBeUndefined()
})
