import { describe, expect, it } from 'vitest'
import { expandVariables } from '../../../src/config/config-document.ts'

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
