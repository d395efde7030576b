import { chmod, readFile, rm } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import {
  type CredentialsOptions,
  openCredentials,
} from '../../../../../src/source/kube/client/credentials.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { createAuthority } from '../../../../support/tls.ts'
import { CANARY, failureOf, loopback } from './loopback.ts'

const rig = loopback()
const CLUSTER = { server: 'https://192.0.2.1:6443' }

async function open(user: object, more: Partial<CredentialsOptions> & { readonly cluster?: object } = {}) {
  const clock = new FakeClock()
  const { cluster = CLUSTER, ...options } = more
  const credentials = await openCredentials({
    kubeconfig: await rig().kubeconfig(cluster, user),
    master: '',
    env: process.env,
    serviceAccountFolder: '/nowhere',
    clock,
    wallMs: () => clock.nowMs(),
    warn: text => rig().warnings.push(text),
    ...options,
  })
  const authorization = async () => (await credentials.pass()).headers.authorization
  return { clock, credentials, authorization }
}

/** Credentials of a plugin: a shell script that counts its runs and prints this. */
async function plugin(output: string, before = '', more: object = {}) {
  const log = await rig().file('runs', '')
  const command = await rig().file(
    'plugin',
    `#!/bin/sh\necho x >> ${log}\n${before}\ncat <<'EOF'\n${output}\nEOF\n`,
  )
  await chmod(command, 0o700)
  const runs = async () => (await readFile(log, 'utf8')).length / 2
  return { command, runs, ...(await open({ exec: { apiVersion: 'v1', command, ...more } })) }
}

function credential(status: object): string {
  return JSON.stringify({ apiVersion: 'client.authentication.k8s.io/v1', kind: 'ExecCredential', status })
}

describe('A31: a token', () => {
  it('in the kubeconfig is shown as it is', async () => {
    const { authorization } = await open({ token: CANARY })
    expect(await authorization()).toBe(`Bearer ${CANARY}`)
  })

  it('in a file is read again after 60 s', async () => {
    const tokenFile = await rig().file('token', 'one\n')
    const { clock, authorization } = await open({ tokenFile })
    expect(await authorization()).toBe('Bearer one')
    await rig().file('token', 'two\n')
    await clock.advance(59_999)
    expect(await authorization()).toBe('Bearer one')
    await clock.advance(1)
    expect(await authorization()).toBe('Bearer two')
  })

  it('in a file is read again at once when it was refused, once for all who were', async () => {
    const tokenFile = await rig().file('token', 'one')
    const { credentials, authorization } = await open({ tokenFile })
    const refused = await credentials.pass()
    await rig().file('token', 'two')
    expect(await Promise.all([credentials.renew(refused), credentials.renew(refused)])).toEqual([true, true])
    expect(await authorization()).toBe('Bearer two')
    expect((await credentials.pass()).generation).toBe(1)
    expect(await credentials.renew(refused)).toBe(true)
    expect((await credentials.pass()).generation).toBe(1)
  })

  it('stays in use when its file goes, with one warning', async () => {
    const tokenFile = await rig().file('token', CANARY)
    const { clock, authorization } = await open({ tokenFile })
    await authorization()
    await rm(tokenFile)
    for (let at = 0; at < 3; at++) {
      await clock.advance(60_000)
      expect(await authorization()).toBe(`Bearer ${CANARY}`)
    }
    expect(rig().warnings.length).toBe(1)
    expect(rig().warnings[0]).toContain(`cannot read token ${tokenFile}: ENOENT; the last values stay in use`)
  })

  it.each([
    ['', 'the token is empty'],
    [' \n', 'the token is empty'],
    [`${CANARY}\r\nx: y`, 'the token has invalid characters'],
    ['x'.repeat(1_100_000), 'is larger than 1 MiB'],
  ])('that cannot be one is refused without being repeated', async (text, words) => {
    const tokenFile = await rig().file('token', text)
    const { authorization } = await open({ tokenFile })
    const error = await failureOf(authorization())
    expect(error).toMatchObject({ kind: 'credentials' })
    expect(error.message).toContain(words)
    expect(error.message).toContain('user "me"')
    expect(error.message).not.toContain(CANARY)
  })

  it('in the kubeconfig is read again when it was refused', async () => {
    const { credentials, authorization } = await open({ token: 'one' })
    const refused = await credentials.pass()
    expect(await credentials.renew(refused)).toBe(false)
    await rig().kubeconfig(CLUSTER, { token: 'two' })
    expect(await credentials.renew(await credentials.pass())).toBe(true)
    expect(await authorization()).toBe('Bearer two')
    await rig().file('kubeconfig', `users: "${CANARY}`)
    expect(await credentials.renew(await credentials.pass())).toBe(false)
    expect(await authorization()).toBe('Bearer two')
    expect(rig().warnings.join()).toContain('not YAML')
    expect(rig().warnings.join()).not.toContain(CANARY)
  })

  it('gives way to none but a user name and password when there is no token', async () => {
    const { authorization } = await open({ username: 'me', password: 'pass:word' })
    expect(await authorization()).toBe(`Basic ${btoa('me:pass:word')}`)
  })
})

describe('in a pod', () => {
  const env = { KUBERNETES_SERVICE_HOST: 'fd00::1', KUBERNETES_SERVICE_PORT: '443' }

  it('the service account is used', async () => {
    const { caPem } = createAuthority()
    await rig().file('token', 'mine')
    await rig().file('ca.crt', caPem)
    const serviceAccountFolder = await rig().folder()
    const { credentials, authorization } = await open({}, { kubeconfig: '', env, serviceAccountFolder })
    expect(credentials.access).toMatchObject({ server: 'https://[fd00::1]:443', insecure: false })
    expect(await authorization()).toBe('Bearer mine')
    expect(await credentials.tls()).toMatchObject({ ca: caPem, cert: undefined })
  })

  it('what is missing is named', async () => {
    expect((await failureOf(open({}, { kubeconfig: '' }))).message).toContain('KUBERNETES_SERVICE_HOST')
    const { credentials } = await open({}, { kubeconfig: '', env })
    expect((await failureOf(credentials.tls())).message).toBe(
      'in-cluster configuration: cannot read certificate authority /nowhere/ca.crt: ENOENT',
    )
  })

  it('--master alone is anonymous', async () => {
    const { credentials, authorization } = await open(
      {},
      { kubeconfig: '', master: 'http://127.0.0.1:8001', env },
    )
    expect(credentials.access.server).toBe('http://127.0.0.1:8001')
    expect(await authorization()).toBeUndefined()
  })

  it('a kubeconfig that is not there is named', async () => {
    expect(await failureOf(open({}, { kubeconfig: '/nowhere/config' }))).toMatchObject({
      kind: 'credentials',
      message: 'cannot read kubeconfig /nowhere/config: ENOENT',
    })
  })
})

describe('a client certificate', () => {
  it('changes when both of its files have', async () => {
    const authority = createAuthority()
    const [one, two] = [authority.issue(), authority.issue()]
    const files = {
      'client-certificate': await rig().file('c.pem', one.certPem),
      'client-key': await rig().file('k.pem', one.keyPem),
    }
    const { clock, credentials } = await open(files)
    const { identity } = await credentials.pass()
    await rig().file('c.pem', two.certPem)
    await clock.advance(60_000)
    expect((await credentials.pass()).identity).toBe(identity)
    expect((await credentials.tls()).cert).toBe(one.certPem)
    await rig().file('k.pem', two.keyPem)
    await clock.advance(60_000)
    expect((await credentials.pass()).identity).not.toBe(identity)
    expect(await credentials.tls()).toMatchObject({ cert: two.certPem, key: two.keyPem })
  })

  it('F15: the authority is read anew for every connection', async () => {
    const [old, young] = [createAuthority(), createAuthority()]
    const path = await rig().file('ca.pem', old.caPem)
    const { credentials } = await open({}, { cluster: { ...CLUSTER, 'certificate-authority': path } })
    expect((await credentials.tls()).ca).toBe(old.caPem)
    await rig().file('ca.pem', young.caPem)
    expect((await credentials.tls()).ca).toBe(young.caPem)
    // An empty one would let Node trust every authority it knows.
    await rig().file('ca.pem', '')
    expect((await credentials.tls()).ca).toBe(young.caPem)
    expect(rig().warnings.join()).toContain('no certificate in the certificate authority')
  })
})

describe('a credential plugin', () => {
  it('is run once while what it gave is good, and again when that has expired', async () => {
    const expirationTimestamp = new Date(600_000).toISOString()
    const { clock, authorization, runs } = await plugin(credential({ token: CANARY, expirationTimestamp }))
    expect(await Promise.all([authorization(), authorization()])).toEqual([
      `Bearer ${CANARY}`,
      `Bearer ${CANARY}`,
    ])
    await clock.advance(599_000)
    await authorization()
    expect(await runs()).toBe(1)
    await clock.advance(1000)
    await authorization()
    expect(await runs()).toBe(2)
  })

  it('that names no end is run again when its token was refused', async () => {
    const { clock, credentials, runs } = await plugin(credential({ token: CANARY }))
    const pass = await credentials.pass()
    await clock.advance(86_400_000)
    await credentials.pass()
    expect(await runs()).toBe(1)
    expect(await credentials.renew(pass)).toBe(true)
    await credentials.pass()
    expect(await runs()).toBe(2)
  })

  it('gets its arguments and environment, and the cluster when it requests it', async () => {
    const seen = `${await rig().folder()}/seen`
    const { authorization } = await plugin(
      credential({ token: 't' }),
      `echo "$1 $2 $COLOUR $HOME" > ${seen}; echo "$KUBERNETES_EXEC_INFO" >> ${seen}; read line; echo "[$line]" >> ${seen}`,
      {
        apiVersion: 'client.authentication.k8s.io/v1',
        args: ['get', 'token'],
        env: [{ name: 'COLOUR', value: 'red' }],
        provideClusterInfo: true,
      },
    )
    await authorization()
    const [first, info, input] = (await readFile(seen, 'utf8')).split('\n')
    expect(first).toBe(`get token red ${process.env.HOME ?? ''}`)
    expect(JSON.parse(info ?? '')).toEqual({
      apiVersion: 'client.authentication.k8s.io/v1',
      kind: 'ExecCredential',
      spec: { interactive: false, cluster: CLUSTER },
    })
    expect(input).toBe('[]')
  })

  it('may give a certificate', async () => {
    const { certPem, keyPem } = createAuthority().issue()
    const { credentials } = await plugin(
      credential({ clientCertificateData: certPem, clientKeyData: keyPem }),
    )
    const pass = await credentials.pass()
    expect(pass.headers.authorization).toBeUndefined()
    expect(pass.identity).not.toBe('')
    expect(await credentials.tls()).toMatchObject({ cert: certPem, key: keyPem, identity: pass.identity })
  })

  it.each([
    [`not JSON ${CANARY}`, '', 'printed something that is not an ExecCredential'],
    ['{}', '', 'printed something that is not an ExecCredential'],
    [credential({}), '', 'gave neither a token nor a certificate'],
    ['', `echo "no such account: ${CANARY}" >&2; exit 3`, 'failed: no such account: …'],
    ['', 'exit 3', 'failed or was killed, without output on standard error'],
  ])('that fails is named, and what it prints is not repeated (%#)', async (output, before, words) => {
    const { authorization, command } = await plugin(output, before, { args: [CANARY] })
    const error = await failureOf(authorization())
    expect(error).toMatchObject({ kind: 'credentials' })
    expect(error.message).toContain(`user "me": ${command} ${words}`)
    expect(JSON.stringify([error.message, error.cause, error])).not.toContain(CANARY)
  })

  it('that is not there is named, with the hint how to install it', async () => {
    const exec = { apiVersion: 'v1', command: 'no-such-plugin', installHint: 'ask Alice', args: [CANARY] }
    const error = await failureOf((await open({ exec })).authorization())
    expect(error.message).toContain('no-such-plugin cannot be started: ENOENT; ask Alice')
    expect(JSON.stringify([error, error.cause])).not.toContain(CANARY)
  })
})

describe('the authority of the server', () => {
  it('has a fingerprint for each of its certificates, which changes of layout keep', async () => {
    const [one, two] = [createAuthority(), createAuthority()]
    const file = await rig().file('ca', `${one.caPem}${two.caPem}`)
    const cluster = { ...CLUSTER, 'certificate-authority': file }
    const { credentials } = await open({ token: CANARY }, { cluster })
    const both = await credentials.authorities()
    expect(both).toHaveLength(2)
    await rig().file('ca', `# rotated\n${two.caPem.replaceAll('\n', '\r\n')}`)
    expect(await credentials.authorities()).toEqual([both[1]])
    expect(both.join()).toMatch(/^[0-9a-f]{64},[0-9a-f]{64}$/)
  })

  it('has none where the kubeconfig names no authority', async () => {
    const { credentials } = await open({ token: CANARY })
    expect(await credentials.authorities()).toEqual([])
  })
})

it('says when a token ends, and nothing of a token that does not say', async () => {
  const claims = Buffer.from('{"exp":1700000000}').toString('base64url')
  const { end } = await endOf({ token: `e30.${claims}.x` })
  expect(end).toEqual({ tokenMs: 1_700_000_000_000, certificateMs: undefined })
  for (const token of ['opaque', 'a.b.c', 'e30.e30.x'])
    expect((await endOf({ token })).end).toEqual({ tokenMs: undefined, certificateMs: undefined })
})

async function endOf(user: object) {
  const opened = await open(user)
  return { end: await opened.credentials.end() }
}
