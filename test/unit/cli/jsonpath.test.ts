import { describe, expect, it } from 'vitest'
import { fillTemplate, parseTemplate, writeDocument } from '../../../src/cli/document.ts'
import { FakeIo } from '../../support/fake-io.ts'

const DOCUMENT = {
  services: [
    {
      service: 'shop/cart:web',
      frontend: '10.96.0.1:80',
      endpoints: ['10.0.0.1:8080', '10.0.0.2:8080'],
      weight: 2,
    },
    { service: 'shop/mail', frontend: '10.96.0.2:25', endpoints: [], weight: 1, labels: { 'a.b/c': 'x' } },
    { service: 'ops/[x]', frontend: '{y}', endpoints: ['e'], weight: 3 },
  ],
  total: 3,
}

describe('a JSONPath template', () => {
  it.each<[string, string]>([
    ['{.total}', '3'],
    ['{$.total}', '3'],
    ['{ .total }', '3'],
    ['total: {.total}{"\\n"}', 'total: 3\n'],
    ['{.services[*].service}', 'shop/cart:web shop/mail ops/[x]'],
    ['{.services[0].frontend}', '10.96.0.1:80'],
    ['{.services[-1].frontend}', '{y}'],
    ['{.services[-2].frontend}', '10.96.0.2:25'],
    ['{.services[7].frontend}', ''],
    ['{.services[0:2].weight}', '2 1'],
    ['{.services[1:].weight}', '1 3'],
    ['{.services[::2].weight}', '2 3'],
    ['{.services[0].endpoints}', '["10.0.0.1:8080","10.0.0.2:8080"]'],
    ["{.services[0]['service','weight']}", 'shop/cart:web 2'],
    ["{.services[1].labels['a.b/c']}", 'x'],
    ['{.services[1].labels.a\\.b/c}', 'x'],
    ['{..weight}', '2 1 3'],
    ['{.services[?(@.weight>1)].service}', 'shop/cart:web ops/[x]'],
    ['{.services[?(@.weight >= 3)].service}', 'ops/[x]'],
    ['{.services[?(@.service=="shop/mail")].frontend}', '10.96.0.2:25'],
    ["{.services[?(@.service!='shop/mail')].weight}", '2 3'],
    ['{.services[?(@.service=="ops/[x]")].frontend}', '{y}'],
    ['{.services[?(@.labels)].service}', 'shop/mail'],
    ['{.absent.deeper[*]}', ''],
    [
      '{range .services[*]}{.service}{"\\t"}{.frontend}{"\\n"}{end}',
      'shop/cart:web\t10.96.0.1:80\nshop/mail\t10.96.0.2:25\nops/[x]\t{y}\n',
    ],
    ['{range .services[*]}{range .endpoints[*]}{@},{end};{end}', '10.0.0.1:8080,10.0.0.2:8080,;;e,;'],
    ['{"{}"}{\'"\'}', '{}"'],
    ['plain', ''],
    ['.total', '3'],
    ['total', '3'],
    ['{.services[*].toString}', ''],
    ['{.constructor}{.__proto__}', ''],
  ])('%s', (template, expected) => {
    expect(fillTemplate(parseTemplate(template), DOCUMENT)).toBe(expected)
  })

  it('cleans what it selects for a terminal, and keeps its own texts', async () => {
    const document = {
      services: [{ name: `a${String.fromCharCode(27)}[2J`, at: [{ x: String.fromCharCode(0x9b) }] }],
    }
    const format = `jsonpath={range .services[*]}{.name}{"\\t"}{.at}${String.fromCharCode(7)}{end}` as const
    const [terminal, pipe] = [new FakeIo({ terminal: true }), new FakeIo()]
    await writeDocument(document, format, terminal)
    await writeDocument(document, format, pipe)
    expect(terminal.stdout).toBe(`a\\u{1b}[2J\t[{"x":"\\u{9b}"}]${String.fromCharCode(7)}\n`)
    expect(pipe.stdout).toContain(String.fromCharCode(27))
  })

  it.each<[string, string]>([
    ['{.total', '{ at character 1 is not closed'],
    ['a{"x}', '{ at character 2 is not closed'],
    ['{.services[}', '".services[" is not a path: "[" cannot be parsed'],
    ['{.a[b]}', '".a[b]" is not a path: "[b]" cannot be parsed'],
    ['{.a b}', '".a b" is not a path: " b" cannot be parsed'],
    ['{.a[?(@.x==y)]}', '"y" in a filter is not a number, true, false or text in quotes'],
    ['{end}', '{end} without {range}'],
    ['{range .a}{.b}', '{range} without {end}'],
    ['{}', '"" is not a path'],
  ])('%s is refused', (template, message) => {
    expect(() => parseTemplate(template)).toThrow(message)
  })
})
