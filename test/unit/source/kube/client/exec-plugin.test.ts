import { chmod } from 'node:fs/promises'
import { KubeConfig } from '@kubernetes/client-node'
import { describe, expect, it } from 'vitest'
import { runExecPlugin } from '../../../../../src/source/kube/client/exec-plugin.ts'
import { failureOf, loopback } from './loopback.ts'

const rig = loopback()

describe('a credential plugin', () => {
  it('is killed when it runs too long: the library can still be made to do so', async () => {
    const command = await rig().file('plugin', '#!/bin/sh\nexec sleep 600\n')
    await chmod(command, 0o700)
    const ran = runExecPlugin({
      config: new KubeConfig(),
      exec: { apiVersion: 'v1', command, args: [], env: [], installHint: '', provideClusterInfo: false },
      where: 'here',
      cluster: { server: 'https://a.test' },
      limitMs: 100,
    })
    expect((await failureOf(ran)).message).toBe(`here: ${command} failed or was killed, and said nothing`)
  })
})
