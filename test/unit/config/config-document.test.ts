import { describe, expect, it } from 'vitest'
import { expandVariables, readConfigDocument } from '../../../src/config/config-document.ts'
import { scalarValue } from '../../../src/config/field-values.ts'
import { IS_QUICK } from '../../support/runs.ts'

const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'

function read(body: string) {
  return readConfigDocument(`${HEAD}${body}`, 'c.yaml')
}

/** `path: message` of every error. */
function errorsOf(text: string): string[] {
  return readConfigDocument(text, 'c.yaml').errors.map(({ path, message }) => `${path}: ${message}`)
}

describe('readConfigDocument', () => {
  it('reads values of every kind', () => {
    const { settings, errors, warnings } = read(`
mode: nftables
bindAddressHardFail: yes
clientConnection: { qps: 2.5, burst: 0x10 }
conntrack: { min: 1_000, udpTimeout: 1m30s, tcpCloseWaitTimeout: null }
nodePortAddresses: [10.0.0.0/8, null]
featureGates: { AllAlpha: true, AllBeta: null }
logging:
  flushFrequency: 5000000000
  vmodule: [{ filePattern: a, verbosity: 3 }]
  options: { text: { infoBufferSize: 1.5Ki } }
`)
    expect([...errors, ...warnings]).toEqual([])
    expect(settings.text('mode')).toBe('nftables')
    expect(settings.bool('bindAddressHardFail')).toBe(true)
    expect(settings.number('clientConnection.qps')).toBe(2.5)
    expect(settings.number('clientConnection.burst')).toBe(16)
    expect(settings.number('conntrack.min')).toBe(1_000)
    expect(settings.duration('conntrack.udpTimeout')).toBe(90_000_000_000n)
    expect(settings.duration('conntrack.tcpCloseWaitTimeout')).toBe(3_600_000_000_000n)
    expect(settings.texts('nodePortAddresses')).toEqual(['10.0.0.0/8', ''])
    expect(settings.gates()).toEqual({ AllAlpha: true, AllBeta: false })
    expect(settings.vmodule()).toEqual([{ filePattern: 'a', verbosity: 3 }])
    expect(settings.duration('logging.flushFrequency')).toBe(5_000_000_000n)
    expect(settings.text('logging.options.text.infoBufferSize')).toBe('1.5Ki')
  })

  it('reports all errors at once, each at its place', () => {
    expect(
      errorsOf(`${HEAD}conntrack:\n  maxPerCore: many\n  udpTimeout: 5\nclientConnection: [1]\nmode: on\n`),
    ).toEqual([
      'c.yaml:4:15: conntrack.maxPerCore: "many" is not a whole number from -2147483648 to 2147483647',
      'c.yaml:5:15: conntrack.udpTimeout: 5 is not a duration such as 30s, 1m30s or 20ms',
      'c.yaml:6:19: clientConnection: is not a mapping of acceptContentTypes, burst, contentType, kubeconfig, qps',
      'c.yaml:7:7: mode: true is not a text',
    ])
  })

  it.each([
    ['conntrack: { min: 1.5 }', 'conntrack.min: 1.5 is not a whole number'],
    ['conntrack: { min: 3000000000 }', 'conntrack.min: 3000000000 is not a whole number'],
    ['conntrack: { min: [] }', 'conntrack.min: a list is not a whole number'],
    ['conntrack: { udpTimeout: null }', 'conntrack.udpTimeout: null is not a duration'],
    ['conntrack: { udpTimeout: "" }', 'conntrack.udpTimeout: "" is not a duration'],
    ['clientConnection: { qps: "5" }', 'clientConnection.qps: "5" is not a number'],
    ['clientConnection: { qps: .inf }', 'clientConnection.qps: Infinity is not a number'],
    ['featureGates: { A: 1 }', 'featureGates.A: 1 is not true or false'],
    ['featureGates: [A]', 'featureGates: a list is not a mapping'],
    ['nodePortAddresses: primary', 'nodePortAddresses: "primary" is not a list of texts'],
    ['nodePortAddresses: [5]', 'nodePortAddresses[0]: 5 is not a text'],
    ['logging: { vmodule: [{ verbosity: -1 }] }', 'logging.vmodule[0].verbosity: -1 is not a whole number'],
    ['logging: { flushFrequency: soon }', 'logging.flushFrequency: "soon" is not a duration'],
  ])('refuses %s', (body, message) => {
    const errors = errorsOf(`${HEAD}${body}\n`)
    expect(errors).toHaveLength(1)
    expect(errors[0]).toContain(message)
  })

  it('ignores unknown fields, and names each with its place', () => {
    const { warnings, errors, settings } = read(
      'foo: 1\nconntrack:\n  Min: 5\nclientConnection: { kubeConfig: x }\nmode: a\nmode: nftables\n',
    )
    expect(errors).toEqual([])
    expect(warnings).toEqual([
      'c.yaml:3:1: foo: unknown field ignored',
      'c.yaml:5:3: conntrack.Min: unknown field ignored; did you mean min?',
      'c.yaml:6:21: clientConnection.kubeConfig: unknown field ignored; did you mean kubeconfig?',
      'c.yaml:7:1: mode: repeated; the last one counts',
    ])
    expect(settings.text('mode')).toBe('nftables')
  })

  it.each([
    ['', /^c\.yaml: is empty; the file holds one KubeProxyConfiguration/],
    ['# nothing\n---\n', /^c\.yaml: is empty/],
    ['- a\n', /^c\.yaml:1:1: is not a mapping/],
    [`${HEAD}---\nfoo: bar\n`, /^c\.yaml:4:1: a second document begins here/],
    [HEAD.replace('v1alpha1', 'v1'), /^c\.yaml:1:13: apiVersion: "kubeproxy\.config\.k8s\.io\/v1" is not/],
    ['kind: KubeProxyConfiguration\n', /^c\.yaml:1:1: apiVersion: is missing/],
    [`${HEAD}a: {b\n`, /^c\.yaml:4:1: /],
    [`${HEAD}\tfoo: 1\n`, /^c\.yaml:3:1: Tabs/],
    [`${HEAD}a: *nobody\n`, /^c\.yaml:1:1: Unresolved alias .*: nobody/],
  ])('refuses %j', (text, message) => {
    const errors = errorsOf(text)
    expect(errors).toHaveLength(1)
    expect(errors[0]).toMatch(message)
  })

  it('says of a file of another kind only that it is one', () => {
    expect(errorsOf('apiVersion: v1\nkind: ConfigMap\ndata: 5\n')).toEqual([
      'c.yaml:1:13: apiVersion: "v1" is not kubeproxy.config.k8s.io/v1alpha1',
      'c.yaml:2:7: kind: "ConfigMap" is not KubeProxyConfiguration',
    ])
  })

  it('takes one document between marks', () => {
    expect(errorsOf(`---\n${HEAD}---\n# nothing\n...\n`)).toEqual([])
  })
})

describe('aliases and merges', () => {
  it('follows them', () => {
    const { settings, errors } = read(
      'x: &cidr 10.0.0.0/8\ny: &base { min: 5, maxPerCore: 6 }\nnodePortAddresses: [*cidr]\n' +
        'conntrack: { <<: *base, min: 7 }\n',
    )
    expect(errors).toEqual([])
    expect(settings.texts('nodePortAddresses')).toEqual(['10.0.0.0/8'])
    expect(settings.number('conntrack.maxPerCore')).toBe(6)
    expect(settings.number('conntrack.min')).toBe(7)
  })

  it('lets the first of several merged mappings win, and an anchor given anew count from there on', () => {
    const { settings } = read(
      'a: &a { min: 1 }\nb: &b { min: 2, maxPerCore: 3 }\nconntrack: { <<: [*a, *b] }\n' +
        'c: &c text\nmode: *c\nd: &c other\nhostnameOverride: *c\n',
    )
    expect(settings.number('conntrack.min')).toBe(1)
    expect(settings.number('conntrack.maxPerCore')).toBe(3)
    expect([settings.text('mode'), settings.text('hostnameOverride')]).toEqual(['text', 'other'])
  })

  it.skipIf(IS_QUICK)('does not expand what blows up', () => {
    const bomb = Array.from({ length: 30 }, (_, level) => {
      const merges = Array(9).fill(`*a${level - 1}`)
      return `b${level}: &a${level} ${level === 0 ? '{ min: 1 }' : `{ <<: [${merges.join(', ')}] }`}`
    })
    expect(errorsOf(`${HEAD}${bomb.join('\n')}\nconntrack: *a29\n`)).toEqual([
      expect.stringMatching(/^c\.yaml:1:1: Excessive alias count/),
    ])
    const list = `a: &a [${Array(4_000).fill('x').join(', ')}]\n`
    expect(read(`${list}nodePortAddresses: *a\nipvs: { excludeCIDRs: *a }\n`).errors).toEqual([])
  })

  it.skipIf(IS_QUICK)('ends with an error when the nesting is deeper than the stack', () => {
    expect(errorsOf(`${HEAD}a: ${'['.repeat(200_000)}\n`).length).toBeGreaterThan(0)
  })

  it('does not follow an alias into itself', () => {
    expect(read('conntrack: &a { <<: *a, min: 5 }\n').errors).toHaveLength(1)
  })

  it('places what an alias repeats where the alias is', () => {
    const { errors } = read('x: &base { min: many }\nconntrack: *base\n')
    expect(errors).toEqual([
      { path: 'c.yaml:4:12: conntrack.min', message: expect.stringContaining('"many" is not') },
    ])
  })
})

const expand = (text: string, env: Readonly<Record<string, string>> = {}) =>
  expandVariables({ path: 'c.yaml', text }, env)

describe('expandVariables', () => {
  it('replaces $(NAME) by the environment variable, but not in comments', () => {
    const text = '# $(NOT)\nclusterCIDR: $(POD_CIDR)\nmode: "$(A)$(A)"\n'
    expect(expand(text, { POD_CIDR: '10.0.0.0/8', A: 'x' })).toEqual({
      text: '# $(NOT)\nclusterCIDR: 10.0.0.0/8\nmode: "xx"\n',
      errors: [],
    })
  })

  it('names variables that are not set, or have more than one line', () => {
    expect(expand('mode: ipvs\nclusterCIDR: $(A)\nx: $(B)', { B: 'a\nb: c' }).errors).toEqual([
      { path: 'c.yaml:2', message: '$(A): the environment variable A is not set' },
      { path: 'c.yaml:3', message: '$(B): the environment variable B has more than one line' },
    ])
  })

  it('names placeholders that are left, in the file and in variables', () => {
    const { errors } = expand('a: REPLACE_ME_A\nb: $(B)\n# REPLACE_ME_C', { B: 'x-REPLACE_ME_B' })
    expect(errors.map(({ path, message }) => `${path}: ${message}`)).toEqual([
      'c.yaml:1: "a: REPLACE_ME_A": REPLACE_ME_A is a placeholder of the manifest; replace it with the real value',
      'c.yaml:2: "b: $(B)": REPLACE_ME_B is a placeholder of the manifest; replace it with the real value',
    ])
  })
})

it.each(['512', 512, '1500k', '1.5Ki', '1Mi', '1e3', '100m', '0', '.5'])('takes the size %j', size => {
  expect(scalarValue('quantity', size)).toBe(String(size))
})

it.each(['', 'k', '1kB', '1 Ki', '--1', '1e999', [5], true])('refuses the size %j', size => {
  expect(scalarValue('quantity', size)).toBeUndefined()
})
